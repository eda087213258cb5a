"""Tests of running steps side by side: order, failure, cancellation, what the reader sees."""

import io
import os
import re
import threading
import time
from pathlib import Path

import pytest
from tests.devcluster.steps import Step, StepError, StepRun, run, run_each


def _noted(order: list[str], name: str, *after: str) -> Step:
    return Step(name=name, after=after, run=lambda step: order.append(step.name))


def test_a_step_runs_after_what_it_names(tmp_path: Path) -> None:
    order: list[str] = []
    steps = (_noted(order, "c", "a", "b"), _noted(order, "b", "a"), _noted(order, "a"))
    run(steps, logs=tmp_path, stream=io.StringIO())
    assert order == ["a", "b", "c"]


def test_independent_steps_run_side_by_side(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=10)
    steps = tuple(Step(name=name, run=lambda _: both.wait()) for name in "ab")
    run(steps, logs=tmp_path, stream=io.StringIO())


def test_a_step_that_waits_for_nothing_known_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="b waits for a step that is not there"):
        run([_noted([], "b", "a")], logs=tmp_path, stream=io.StringIO())


def test_failure_names_the_step_its_last_words_and_its_log(tmp_path: Path) -> None:
    step = Step(name="s", run=lambda s: s.command(["sh", "-c", "echo the reason; exit 3"]))
    with pytest.raises(StepError, match=r"s: the reason\n  its output: .*s\.log"):
        run([step], logs=tmp_path, stream=io.StringIO())
    assert "the reason" in (tmp_path / "s.log").read_text()


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    step = Step(name="s", run=lambda s: s.command(["no-such-program"]))
    with pytest.raises(StepError, match="no-such-program"):
        run([step], logs=tmp_path, stream=io.StringIO())


def test_failure_ends_what_other_steps_run(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    def fail(_: StepRun) -> None:
        while not pid_file.exists() or not pid_file.read_text().strip():
            time.sleep(0.01)
        raise StepError("broken")

    sleeper = Step(
        name="sleeper",
        run=lambda s: s.command(["sh", "-c", f"echo $$ > {pid_file}; exec sleep 300"]) and None,
    )
    with pytest.raises(StepError, match="failing: broken"):
        run([sleeper, Step(name="failing", run=fail)], logs=tmp_path, stream=io.StringIO())
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_without_a_terminal_there_is_a_line_for_begin_and_end(tmp_path: Path) -> None:
    seen = io.StringIO()
    run([_noted([], "one")], logs=tmp_path, stream=seen)
    begin, end = (line.split("] ")[1] for line in seen.getvalue().splitlines())
    assert begin == "one ..."
    assert re.fullmatch(r"one done \(\d+ s\)", end)


def test_each_step_runs_to_its_end_whatever_happens_to_others(tmp_path: Path) -> None:
    order: list[str] = []
    failing = [
        Step(name=name, run=lambda s: s.command(["sh", "-c", f"echo no {s.name}; false"]))
        for name in ("f", "g")
    ]
    failures = run_each([*failing, _noted(order, "a")], logs=tmp_path, stream=io.StringIO())
    assert order == ["a"]
    assert sorted(str(failure).splitlines()[0] for failure in failures) == ["f: no f", "g: no g"]


def test_a_note_stays_on_the_screen_and_other_lines_do_not(tmp_path: Path) -> None:
    shown = io.StringIO()
    script = "echo much; echo 'note: it is built'"
    step = Step(name="s", run=lambda s: s.command(["sh", "-c", script]))
    run([step], logs=tmp_path, stream=shown)
    assert "s: it is built\n" in shown.getvalue()
    assert "much" not in shown.getvalue()
