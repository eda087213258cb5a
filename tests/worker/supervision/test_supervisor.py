"""Processes that die are started again, whoever looks or does not look at the probes."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from tests.worker.supervision.child_of_three_lives import Lives

from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.ipc.parent_link import Report
from mizzen_worker.supervision.child import ChildSpec
from mizzen_worker.supervision.supervisor import DrainPlan, Listeners, Supervisor

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.timeout(120)
def test_an_early_death_of_a_set_that_worked_is_forgiven_without_any_probe(tmp_path: Path) -> None:
    async def scenario() -> None:
        lives_ready = asyncio.Queue[int]()

        def on_report(_name: str, report: Report) -> None:
            if report.state == "ready":
                lives_ready.put_nowait(report.num_beats)

        spec = ChildSpec(
            name="child",
            kind="child",
            module="tests.worker.supervision.child_of_three_lives",
            configuration=Lives(file=str(tmp_path / "lives")),
            is_restarted=True,
        )
        supervisor = Supervisor(
            [spec],
            plan=DrainPlan(stages=(("child",),)),
            clock=time.monotonic,
            environment={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'worker'}"},
            stuck_limit_s=60,
            listeners=Listeners(on_report=on_report),
        )
        running = asyncio.create_task(supervisor.run())
        seen = asyncio.create_task(_until(lives_ready, 3))
        await asyncio.wait({running, seen}, return_when=asyncio.FIRST_COMPLETED)
        assert supervisor.failure is None
        await supervisor.drain(DrainMode.FINISH, 20)
        await running
        assert 'restarts_total{process="child"} 2.0' in supervisor.metrics(None)

    asyncio.run(scenario())


async def _until(lives: "asyncio.Queue[int]", wanted: int) -> None:
    while await lives.get() != wanted:
        pass
