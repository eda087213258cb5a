"""The accounting of profiled steps, without a GPU."""

import json
from pathlib import Path

import pytest
from tests.gpu.profile_steps import GAP, KernelRun, charge, kernel_runs, middle_steps


def _run(name: str, start: float, duration: float) -> KernelRun:
    return KernelRun(name=name, start=start, duration=duration)


def test_charges_add_up_with_overlaps_and_gaps() -> None:
    runs = [_run("a", 0, 10), _run("b", 6, 10), _run("a", 20, 5)]
    charged = charge(runs, until=30)
    assert charged == {"a": 11, "b": 10, GAP: 9}
    assert sum(charged.values()) == 30


def test_whole_steps_are_cut_between_their_first_kernels() -> None:
    runs = [
        _run(name, 10 * step + at, 1)
        for step in range(6)
        for name, at in (("_stage_step", 0), ("x", 2))
    ]
    found, until = middle_steps(runs, 3)
    assert (found[0].start, len(found), until) == (10, 6, 40)
    with pytest.raises(ValueError, match="only 6 launches"):
        middle_steps(runs, 5)


def test_a_trace_gives_kernels_in_order(tmp_path: Path) -> None:
    events = [
        {"cat": "kernel", "name": "b", "ts": 5, "dur": 1},
        {"cat": "cpu_op", "name": "no", "ts": 0, "dur": 9},
        {"cat": "gpu_memcpy", "name": "copy", "ts": 2, "dur": 1},
    ]
    trace = tmp_path / "t.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    assert [run.name for run in kernel_runs(trace)] == ["copy", "b"]
