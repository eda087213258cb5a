"""Owns the exception tree of the worker package; maps nothing to HTTP (http_api/errors.py does).

::

    WorkerError
    ├── ConfigError          a flag, file or variable is wrong: the process does not start
    ├── ModelLoadError       the weights or the tokenizer cannot be used
    ├── FetchError           weights cannot be fetched; carries the reason in one word
    │   └── SourceChangedError   what was listed is no longer there: list again
    ├── RequestError         this request is wrong; carries the field it is about
    │   ├── PromptTooLongError
    │   └── UnknownModelError
    ├── OverloadedError        nothing wrong with it, but not now; carries retry_after_s
    │   └── UnavailableError     no worker can take anything now: starting, draining or gone
    ├── InterruptedRequestError  it began, its worker was lost and nobody could go on with it
    ├── WireError            a peer sent what the contract forbids
    ├── StepError            one batch cannot run; the batch's requests end
    ├── DeviceError          the device or the runner is unusable: the process ends
    ├── RankGroupError       the ranks of a group do not agree, or one is lost: the process ends
    └── InvariantError       our own books disagree; lists every violation; the process ends
"""

from collections.abc import Sequence

from mizzen_worker.contracts.fetch import FetchReason


class WorkerError(Exception):
    """Root of everything this package raises on purpose."""


class ConfigError(WorkerError):
    """Configuration that cannot work."""


class ModelLoadError(WorkerError):
    """Weights or tokenizer that cannot be loaded."""


class FetchError(WorkerError):
    """Weights that cannot be fetched; ``retry_after_s`` is what the other side asked for."""

    def __init__(
        self, message: str, *, reason: FetchReason, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class SourceChangedError(FetchError):
    """A file is no longer the one that was listed."""


class RequestError(WorkerError):
    """A request that cannot be served; ``field`` names the part of the body, or is None."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PromptTooLongError(RequestError):
    """Prompt plus requested output do not fit the context."""


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""


class OverloadedError(WorkerError):
    """Refused for lack of room; worth retrying after ``retry_after_s`` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(OverloadedError):
    """No worker takes work at the moment."""


class InterruptedRequestError(WorkerError):
    """A request that began and cannot be finished."""


class WireError(WorkerError):
    """Bytes or messages that break the wire contract."""


class StepError(WorkerError):
    """A batch that cannot run."""


class DeviceError(WorkerError):
    """The device is unusable."""


class RankGroupError(WorkerError):
    """A group of ranks that cannot work, or no longer; says which rank and why."""


class InvariantError(WorkerError):
    """Broken invariants, all of them listed."""

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("; ".join(violations))
        self.violations = tuple(violations)
