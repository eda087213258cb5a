"""Owns how log lines look: JSON or text, one line each, with the fields given as ``extra``.

Owns no decision about what is logged. Prompt text and secrets are never passed as fields; a field
that is not a scalar is shown by its type only, so that no request body slips in.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

_STANDARD = frozenset(
    logging.LogRecord("", 0, "", 0, "", None, None).__dict__.keys()
    | {"message", "asctime", "taskName", "color_message"}
)
_MAX_FIELD_CHARS = 2000


def configure_logging(*, level: str, is_json: bool, fields: Mapping[str, str]) -> None:
    """Send every logger's lines to stderr; ``fields`` (role, rank) stand on each line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(is_json=is_json, fields=fields))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "uvicorn.error", "httpx", "asyncio", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class LineFormatter(logging.Formatter):
    """One line a record: time, level, logger, message, fields."""

    def __init__(self, *, is_json: bool, fields: Mapping[str, str]) -> None:
        super().__init__()
        self._is_json = is_json
        self._fields = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        time = datetime.fromtimestamp(record.created, tz=UTC)
        fields: dict[str, object] = dict(self._fields)
        for key, value in record.__dict__.items():
            if key not in _STANDARD:
                fields[key] = _shown(value)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        stamp = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if self._is_json:
            line = {
                "time": stamp,
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage(),
                **fields,
            }
            return json.dumps(line, ensure_ascii=False)
        traceback = fields.pop("traceback", None)
        shown = " ".join(f"{key}={value}" for key, value in fields.items())
        text = f"{stamp} {record.levelname:<7} {record.getMessage()}"
        text = f"{text}  {shown}" if shown else text
        text = text.replace("\n", "\\n")
        return f"{text}\n{traceback}" if traceback else text


def _shown(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value if len(value) <= _MAX_FIELD_CHARS else value[:_MAX_FIELD_CHARS] + "…"
    return f"<{type(value).__name__}>"
