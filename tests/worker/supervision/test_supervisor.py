"""Processes that die are started again, whoever looks or does not look at the probes."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.worker.supervision.child_of_three_lives import Lives
from tests.worker.supervision.scripted_child import Script

from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.ipc.parent_link import Report
from mizzen_worker.supervision.child import ChildSpec
from mizzen_worker.supervision.health import SilenceLimits
from mizzen_worker.supervision.supervisor import DrainPlan, Listeners, Supervisor

ROOT = Path(__file__).resolve().parents[3]


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
        supervisor = _supervisor(spec, on_report=on_report)
        running = asyncio.create_task(supervisor.run())
        seen = asyncio.create_task(_until(lives_ready, 3))
        await asyncio.wait({running, seen}, return_when=asyncio.FIRST_COMPLETED)
        assert supervisor.failure is None
        await supervisor.drain(DrainMode.FINISH, 20)
        await running
        assert 'restarts_total{process="child"} 2.0' in supervisor.metrics(None)

    asyncio.run(scenario())


def test_last_words_are_heard_behind_many_others() -> None:
    supervisor = _supervisor(_scripted("child", Script(num_reports=200, state="failed")))
    asyncio.run(supervisor.run())
    assert supervisor.failure == "child ended with exit status 1: the last words"


def test_what_cannot_be_started_is_dead() -> None:
    spec = replace(_scripted("child", Script()), inherited_fds=(9999,), is_restarted=True)
    supervisor = _supervisor(spec)
    asyncio.run(supervisor.run())
    assert supervisor.failure == "child cannot be started: [Errno 9] Bad file descriptor"


def test_a_drain_does_not_wait_for_a_process_that_is_still_loading() -> None:
    async def scenario() -> None:
        begun = asyncio.Event()
        spec = _scripted("child", Script(state="loading", does_stay=True))
        supervisor = _supervisor(spec, on_report=lambda _name, _report: begun.set())
        running = asyncio.create_task(supervisor.run())
        await begun.wait()
        await supervisor.drain(DrainMode.FINISH, 10_000)
        await running
        assert supervisor.failure is None

    asyncio.run(scenario())


def test_nothing_is_started_again_during_a_drain(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    before: list[str] = []

    async def scenario() -> None:
        dead, stays = asyncio.Event(), asyncio.Event()

        def on_report(name: str, _report: Report) -> None:
            (dead if name == "dead" else stays).set()

        supervisor = _supervisor(
            replace(_scripted("dead", Script(lives=str(lives))), is_restarted=True),
            _scripted("stays", Script(does_stay=True)),
            on_report=on_report,
        )
        running = asyncio.create_task(supervisor.run())
        await asyncio.gather(dead.wait(), stays.wait())
        while supervisor.process_ids()["dead"] is not None:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)
        # On a slow machine it has lived more than once before the other one spoke.
        before.append(lives.read_text())
        # Only the end of its time ends the other one, long after the first would have come back.
        await supervisor.drain(DrainMode.FINISH, 0)
        await running
        assert supervisor.failure is None

    asyncio.run(scenario())
    assert [lives.read_text()] == before


def test_a_death_ends_who_shares_the_fate_once_and_all_are_started_again(tmp_path: Path) -> None:
    names = ("first", "second", "third", "other")
    lives = {name: tmp_path / name for name in names}
    trigger = tmp_path / "trigger"

    async def scenario() -> None:
        ready: asyncio.Queue[str] = asyncio.Queue()
        scripts = {
            name: Script(does_stay=name != "second", lives=str(file))
            for name, file in lives.items()
        }
        scripts["second"] = Script(lives=str(lives["second"]), ends_when=str(trigger))
        supervisor = _supervisor(
            *(
                replace(
                    _scripted(name, script),
                    is_restarted=True,
                    fate=None if name == "other" else "group",
                )
                for name, script in scripts.items()
            ),
            on_report=lambda name, _report: ready.put_nowait(name),
        )
        running = asyncio.create_task(supervisor.run())
        assert {await ready.get() for _ in names} == set(names)
        before = dict(supervisor.process_ids())
        trigger.touch()
        again = {await ready.get()}
        trigger.unlink()
        while again != {"first", "second", "third"}:
            again.add(await ready.get())
        after = supervisor.process_ids()
        assert all(after[name] not in {None, before[name]} for name in again)
        assert after["other"] == before["other"]
        await supervisor.drain(DrainMode.FINISH, 0)
        await running

    asyncio.run(scenario())
    assert len(lives["first"].read_text()) == len(lives["third"].read_text()) == 2
    assert len(lives["other"].read_text()) == 1


def test_a_process_that_stops_showing_life_is_ended_and_the_reason_told() -> None:
    spec = _scripted("child", Script(does_stay=True, shows_life=True))
    supervisor = _supervisor(spec, lifeless_s=0.5)
    asyncio.run(supervisor.run())
    assert supervisor.failure is not None
    assert supervisor.failure.startswith("child ended with signal 9: it has shown no life for ")


def _scripted(name: str, script: Script) -> ChildSpec:
    return ChildSpec(
        name=name,
        kind="child",
        module="tests.worker.supervision.scripted_child",
        configuration=script,
        is_restarted=False,
    )


def _supervisor(
    *specs: ChildSpec,
    on_report: Callable[[str, Report], None] = lambda _name, _report: None,
    lifeless_s: float = 60,
) -> Supervisor:
    return Supervisor(
        specs,
        plan=DrainPlan(stages=(tuple(spec.name for spec in specs),)),
        clock=time.monotonic,
        environment={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'worker'}"},
        limits=SilenceLimits(running_s=60, loading_s=60, lifeless_s=lifeless_s),
        listeners=Listeners(on_report=on_report),
    )


async def _until(lives: "asyncio.Queue[int]", wanted: int) -> None:
    while await lives.get() != wanted:
        pass
