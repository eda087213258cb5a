"""When failed attempts are made again."""

import pytest

from mizzen_worker.contracts.errors import FetchError, SourceChangedError
from mizzen_worker.contracts.fetch import FetchReason
from mizzen_worker.fetch.retry import RetryPolicy, retry

POLICY = RetryPolicy()


class Waiter:
    """Notes pauses instead of making them."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    def pause(self, delay_s: float, error: FetchError) -> None:
        self.delays.append(delay_s)

    def share(self) -> float:
        return 1.0


def _error(reason: FetchReason, retry_after_s: float | None = None) -> FetchError:
    return FetchError("x", reason=reason, retry_after_s=retry_after_s)


@pytest.mark.parametrize("reason", FetchReason)
def test_which_reasons_are_worth_it(reason: FetchReason) -> None:
    is_retried = POLICY.delay_s(_error(reason), 1, 0.5) is not None
    assert is_retried == (reason.value in {"RateLimited", "Unreachable", "VerifyFailed"})
    assert (reason.exit_code == 75) == (
        reason.value in {"RateLimited", "Unreachable", "Interrupted"}
    )


def test_pauses_grow_to_a_bound_and_differ() -> None:
    error = _error(FetchReason.UNREACHABLE)
    assert [POLICY.delay_s(error, n, 1.0) for n in range(1, 8)] == [1, 2, 4, 8, 16, 32, 60]
    assert POLICY.delay_s(error, 3, 0.0) == 2
    assert POLICY.delay_s(error, 8, 1.0) is None


def test_whoever_asks_for_time_gets_it_or_the_run_ends() -> None:
    asked = _error(FetchReason.RATE_LIMITED, 120)
    assert POLICY.delay_s(asked, 1, 0.0) == 120
    assert POLICY.delay_s(asked, 1, 1.0) == 121
    assert POLICY.delay_s(_error(FetchReason.RATE_LIMITED, 301), 1, 0.0) is None


def test_wrong_content_is_fetched_three_times() -> None:
    error = _error(FetchReason.VERIFY_FAILED)
    assert POLICY.delay_s(error, 2, 1.0) is not None
    assert POLICY.delay_s(error, 3, 1.0) is None
    changed = SourceChangedError("x", reason=FetchReason.VERIFY_FAILED)
    assert POLICY.delay_s(changed, 1, 1.0) is None


def test_progress_makes_failures_count_anew() -> None:
    reached = 0

    def work() -> str:
        nonlocal reached
        if reached == 40:
            return "done"
        reached += 1
        raise _error(FetchReason.UNREACHABLE)

    waiter = Waiter()
    assert retry(work, policy=POLICY, waiting=waiter, progress=lambda: reached) == "done"
    assert waiter.delays == [1.0] * 40


def test_without_progress_it_ends() -> None:
    def work() -> None:
        raise _error(FetchReason.UNREACHABLE)

    waiter = Waiter()
    with pytest.raises(FetchError):
        retry(work, policy=POLICY, waiting=waiter)
    assert len(waiter.delays) == POLICY.max_failures - 1
