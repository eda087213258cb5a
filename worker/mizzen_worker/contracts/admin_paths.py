"""Owns the paths of the admin routes that the operator does not use; those it uses are in
``operator_names``. Serves none of them.
"""

PATH_ABORT = "/abort_request"
"""POST, body ``{"request_id": ...}``."""
PATH_FLUSH = "/flush_cache"
"""POST."""
PATH_SERVER_INFO = "/server_info"
"""GET."""
