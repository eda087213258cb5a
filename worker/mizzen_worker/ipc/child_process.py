"""Owns how a child process begins and fails: configuration, ties, log, last words; owns no work.

A ``WorkerError`` is told to the launcher in its own words before the process ends with status 1.
What the user can put right, a flag or a model, has no traceback, nor has the loss of a peer: the
launcher logs the words.
"""

import logging
import os
import resource
import sys
from collections.abc import Callable
from typing import Protocol, TypeVar

from mizzen_worker.contracts.errors import ConfigError, ModelLoadError, RankGroupError, WorkerError
from mizzen_worker.ipc.parent_link import ParentLink, Report, Wishes, tie_to_parent
from mizzen_worker.observability.process_log import ProcessLog

logger = logging.getLogger(__name__)

_MAX_DETAIL_CHARS = 2000


class ChildSettings(Protocol):
    """A child's whole configuration."""

    @property
    def log(self) -> ProcessLog:
        """How it logs."""
        ...


SettingsT = TypeVar("SettingsT", bound=ChildSettings)


def run_child(
    name: str, kind: type[SettingsT], work: Callable[[SettingsT, ParentLink, Wishes], None]
) -> None:
    """Do a child's work; the process's one argument is the descriptor of its line."""
    link = ParentLink(int(sys.argv[1]))
    settings = link.read_configuration(kind)
    wishes = Wishes()
    tie_to_parent(link, wishes)
    settings.log.start(name)
    allow_all_descriptors()
    try:
        work(settings, link, wishes)
    except Exception as error:
        if not isinstance(error, ConfigError | ModelLoadError | RankGroupError):
            logger.exception("process fails")
        told = str(error) if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"
        link.report(Report(state="failed", num_beats=0, detail=told[:_MAX_DETAIL_CHARS]))
        # An end in order would print what compiled libraries say of objects that the failed work
        # still holds, between the lines of the log, and nothing is left here to put in order.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(1)


def allow_all_descriptors() -> None:
    """Take as many descriptors as the system allows.

    A client's connection takes one, a peer's a handful; the usual 1024 is below
    ``--max-live-requests``, and beyond it clients are turned away without a word.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
