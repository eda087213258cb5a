"""Owns how tests wait for a cluster: ask again and again, fail with the last answer.

Not here: what is waited for.
"""

import time
from collections.abc import Callable
from typing import Any


def wait_for(what: str, check: Callable[[], Any], *, timeout_s: float = 180.0) -> Any:
    """The first true answer of `check`; the last one is in the failure.

    Long by default: it costs time only where a test fails, and machines differ.
    """
    deadline_s = time.monotonic() + timeout_s
    answer = check()
    while not answer:
        assert time.monotonic() < deadline_s, f"{what}: not after {timeout_s:.0f} s: {answer!r}"
        time.sleep(0.05)
        answer = check()
    return answer
