"""Owns the errors that only this package raises; maps none to HTTP (``errors.py`` does)."""

from mizzen_worker.contracts.errors import RequestError, WorkerError


class AccessError(WorkerError):
    """A request without a key that opens the route."""


class MediaTypeError(RequestError):
    """A body that says it is no JSON."""


class SlowBodyError(RequestError):
    """A body that did not arrive in time."""


class AbortedError(WorkerError):
    """A request that an administrator ended."""


class DeadlineError(WorkerError):
    """A request whose time was up before it was complete."""
