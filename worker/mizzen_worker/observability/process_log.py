"""Owns the logging settings that travel to every process; owns no line's look (``log``)."""

import sys

import msgspec

from mizzen_worker.observability.log import configure_logging


class ProcessLog(msgspec.Struct, frozen=True, kw_only=True):
    """How one process logs."""

    level: str
    is_json: bool
    fields: dict[str, str]

    def start(self, process: str) -> None:
        """Configure this process's logging."""
        configure_logging(
            level=self.level, is_json=self.is_json, fields={"process": process, **self.fields}
        )


def is_json_wanted(log_format: str) -> bool:
    """Decide for ``auto``: people read terminals, programs read everything else."""
    return log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
