"""Every rank runs the very same steps and gets the same tokens, whatever the scheduler does.

The fake runner computes tokens from KV contents through its own page table, so a page write or a
slot's entry that does not travel shows in a follower's tokens.
"""

import hashlib
import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.worker.fake_runner import FakeRunner
from tests.worker.rank_group.groups import Group
from tests.worker.scheduler import workloads
from tests.worker.scheduler.harness import Harness

from mizzen_worker.contracts.batch import RunnerLimits, ScheduleBatch, StepResult
from mizzen_worker.rank_group.step_codec import step_of

NEEDED = ("retraction", "preemption", "abort in flight", "chunk", "mixed batch", "cached", "drain")


class HashedRunner(FakeRunner):
    """Keeps a running hash of every call and of every result."""

    def __init__(self, limits: RunnerLimits) -> None:
        super().__init__(limits)
        self.digest = hashlib.sha256()
        self.num_settled = 0

    def launch(self, batch: ScheduleBatch) -> object:
        self.digest.update(msgspec.msgpack.encode(step_of(batch, num_settled=0)))
        return super().launch(batch)

    def _settle(self, step: int) -> StepResult:
        result = super()._settle(step)
        self.num_settled += 1
        self.digest.update(result.sampled_ids.tobytes() + result.is_finished.tobytes())
        return result


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_followers_run_what_the_leader_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_overlapped: bool
) -> None:
    numbers = itertools.count()
    groups: list[tuple[Group, list[HashedRunner], Harness]] = []

    class GroupHarness(Harness):
        """A harness whose loop drives a group of three ranks."""

        def __init__(self, **sizes: object) -> None:
            super().__init__(**sizes)  # type: ignore[arg-type]
            folder = tmp_path / str(next(numbers))
            folder.mkdir()
            others = [HashedRunner(self.limits) for _ in range(2)]
            group = Group(self.runner, list(others), folder)
            self.loop._pipeline._runner = group.runner
            groups.append((group, others, self))

    monkeypatch.setattr(workloads, "Harness", GroupHarness)
    events: Counter[str] = Counter()
    num_steps = 0
    for seed in range(10):
        workload = workloads.draw(seed)
        # An error of one runner alone is no plan; what ranks do then is another test's.
        sound = replace(workload, step_errors=frozenset(), device_errors=frozenset())
        play = workloads.Play(sound, seed if is_overlapped else None)
        play.run()
        events += play.events
        for group, others, harness in groups:
            group.end()
            digests = {other.digest.hexdigest() for other in others}
            assert len(digests) == 1
            for other in others:
                assert len(other.batches) == len(harness.runner.batches) == other.num_settled
                assert _steps(other) == _steps(harness.runner)
            num_steps += len(harness.runner.batches)
        groups.clear()
    assert num_steps > 200
    assert not [name for name in NEEDED if not events[name]]


def _steps(runner: FakeRunner) -> list[bytes]:
    return [msgspec.msgpack.encode(step_of(batch, num_settled=0)) for batch in runner.batches]
