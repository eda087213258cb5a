"""A short soak: the long one is ``python -m tests.soak --minutes 10``."""

import pytest
from tests.soak.run import SoakOptions, run_soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_every_request_ends_once_and_right_while_workers_are_killed() -> None:
    options = SoakOptions(
        duration_s=40.0, kill_every_s=15.0, least=1, flags=("--overlap", "on"), seed=3
    )
    verdict = run_soak(options)
    print("\n".join(verdict.lines()))
    assert not verdict.faults
    assert verdict.counts["worker restarts"] >= 1
