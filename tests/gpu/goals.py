"""Our numbers beside the best peer's, goal and floor: ``python -m tests.gpu.goals out/*.json``.

Reads the files that ``mizzen bench --json`` wrote. Peers (SGLang 0.5.17, vLLM 0.26.0, mini-sglang
20fcd7f at their defaults) and floors are of 2026-11-29 on the same kind of machine (one NVIDIA
H200); the workloads are the defaults of ``mizzen bench`` (128 requests for qwen30b-a3b).
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mizzen_worker.bench.report import table


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One number. ``is_rate``: more is better. ``floor`` is the best that arithmetic allows."""

    name: str
    model: str
    workload: str
    column: str
    where: Mapping[str, object]
    peer: float
    goal: float
    floor: float | None
    is_rate: bool = False


def _decode(name: str, model: str, batch: int, column: str, numbers: tuple[float, ...]) -> Goal:
    peer, goal, floor = numbers
    return Goal(
        name=name, model=model, workload="decode", column=column, where={"batch": batch},
        peer=peer, goal=goal, floor=floor,
    )  # fmt: skip


GOALS = (
    Goal(name="A llama8b offline tok/s", model="llama8b", workload="offline",
         column="output tok/s", where={}, peer=9932, goal=11500, floor=13100, is_rate=True),
    _decode("B llama8b batch 1 ms", "llama8b", 1, "step ms", (4.81, 3.75, 3.32)),
    _decode("B llama8b batch 32 ms", "llama8b", 32, "step ms", (6.30, 5.4, 4.4)),
    _decode("B llama8b batch 128 ms", "llama8b", 128, "step ms", (10.6, 9.2, 7.5)),
    _decode("B llama8b batch 1 TTFT ms", "llama8b", 1, "TTFT ms", (23.2, 22.0, 20.1)),
    Goal(name="C qwen06b offline tok/s", model="qwen06b", workload="offline",
         column="output tok/s", where={"temperature": 0.0}, peer=22874, goal=33000, floor=35100,
         is_rate=True),
    Goal(name="C qwen06b offline, temperature 0.6", model="qwen06b", workload="offline",
         column="output tok/s", where={"temperature": 0.6}, peer=21357, goal=32000, floor=None,
         is_rate=True),
    _decode("C qwen06b batch 1 ms", "qwen06b", 1, "step ms", (1.72, 0.58, 0.29)),
    _decode("C qwen06b batch 1 TTFT ms", "qwen06b", 1, "TTFT ms", (13.0, 6.0, 1.6)),
    Goal(name="D llama8b prefill tok/s", model="llama8b", workload="prefill",
         column="input tok/s", where={}, peer=41842, goal=44000, floor=51000, is_rate=True),
    Goal(name="E prefix, groups, s", model="llama8b", workload="prefix", column="wall s",
         where={"order": "groups"}, peer=2.57, goal=1.9, floor=1.73),
    Goal(name="E prefix, shuffled, s", model="llama8b", workload="prefix", column="wall s",
         where={"order": "shuffled"}, peer=2.66, goal=1.9, floor=1.73),
    Goal(name="F qwen30b-a3b offline tok/s", model="qwen30b-a3b", workload="offline",
         column="output tok/s", where={}, peer=3688, goal=4300, floor=4500, is_rate=True),
    _decode("F qwen30b-a3b batch 1 ms", "qwen30b-a3b", 1, "step ms", (4.07, 2.35, 1.35)),
)  # fmt: skip


def readings(goal: Goal, documents: list[Mapping[str, object]]) -> Iterator[float]:
    """Every number of the documents that is this goal's."""
    for document in documents:
        workloads = document.get("workloads")
        if document.get("model") != goal.model or not isinstance(workloads, dict):
            continue
        for row in workloads.get(goal.workload, ()):
            if all(row.get(key) == value for key, value in goal.where.items()):
                yield float(row[goal.column])


def rows_of(documents: list[Mapping[str, object]]) -> list[dict[str, str]]:
    """One row per goal; a goal that was not measured says so."""
    rows = []
    for goal in GOALS:
        found = list(readings(goal, documents))
        ours = found[-1] if found else None
        rows.append(
            {
                "workload": goal.name,
                "best peer": f"{goal.peer:,.6g}",
                "goal": f"{goal.goal:,.6g}",
                "floor": "-" if goal.floor is None else f"{goal.floor:,.6g}",
                "ours": "not measured" if ours is None else f"{ours:,.5g}",
                "of the floor": _share(goal, ours),
                "reached": "" if ours is None else _verdict(goal, ours),
            }
        )
    return rows


def _share(goal: Goal, ours: float | None) -> str:
    if ours is None or goal.floor is None:
        return "-"
    share = ours / goal.floor if goal.is_rate else goal.floor / ours
    return f"{share:.0%}"


def _verdict(goal: Goal, ours: float) -> str:
    return "yes" if (ours >= goal.goal if goal.is_rate else ours <= goal.goal) else "no"


def main() -> None:
    documents = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    print(table(rows_of(documents)))


if __name__ == "__main__":
    main()
