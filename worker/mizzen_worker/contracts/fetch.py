"""Owns what ``mizzen fetch-weights`` and whoever starts it agree on: reasons, exit codes, places.

The operator reads the reason from a Job's pod and mounts the folder; it never reads the files.
"""

import enum

EXIT_DONE = 0
EXIT_FAILED = 1
"""Another attempt would end the same way."""
EXIT_TRY_AGAIN = 75
"""Another attempt may succeed; it goes on where this one ended."""

STATE_FOLDER = ".mizzen"
"""In each model's folder: the manifest, and while it is being fetched what is known so far."""
MANIFEST_FILE = "manifest.json"
PARTIAL_FOLDER = ".partial"
"""Beside the models' folders: those that are not whole."""


class FetchReason(enum.Enum):
    """Why weights were not fetched, in one word; ``DONE`` where they were."""

    DONE = "Done"
    INVALID_SOURCE = "InvalidSource"
    NOT_FOUND = "NotFound"
    UNAUTHORIZED = "Unauthorized"
    NO_SPACE = "NoSpace"
    VERIFY_FAILED = "VerifyFailed"
    RATE_LIMITED = "RateLimited"
    UNREACHABLE = "Unreachable"
    INTERRUPTED = "Interrupted"

    @property
    def exit_code(self) -> int:
        """Exit status of a command that ends for this reason."""
        if self is FetchReason.DONE:
            return EXIT_DONE
        temporary = (FetchReason.RATE_LIMITED, FetchReason.UNREACHABLE, FetchReason.INTERRUPTED)
        return EXIT_TRY_AGAIN if self in temporary else EXIT_FAILED
