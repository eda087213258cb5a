"""Owns the paths of the admin routes that the operator does not use; those it uses are in
``operator_names``. Serves none of them: the admin port does, and with an admin key the public one.
"""

PATH_ABORT = "/abort_request"
"""POST, body ``{"rid": ...}`` or ``{"abort_all": true}``."""
PATH_FLUSH = "/flush_cache"
"""POST."""
PATH_SERVER_INFO = "/server_info"
"""GET."""
PATH_GET_SERVER_INFO = "/get_server_info"
"""GET: its other name on the public port."""
