"""Owns the form of log lines: one JSON object each, on standard error.

Does not own what is logged nor levels.
"""

import json
import logging
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger and message, then the plain values given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, str | int | float] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {
            key: value
            for key, value in vars(record).items()
            if key not in _STANDARD and isinstance(value, str | int | float)
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure_logs(level: str) -> None:
    """Send everything to standard error as JSON; kopf speaks only when something is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("kopf", "asyncio", "urllib3", "kubernetes"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It warns that it leaves the process's signals alone in a thread, which is wanted.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
