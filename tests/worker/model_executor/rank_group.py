"""Runs tiny models on ranks in processes of their own, and says what each rank's runner answered.

As a program it is one rank: ``python rank_group.py RANK SIZE FOLDER``, which runs every case of
FOLDER/cases.json one after the other and writes FOLDER/RANK.json.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.worker.model_executor.interpreted_start import cpu_as_gpu, start_interpreted
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver

from mizzen_worker.contracts.request import LogprobParams, SamplingParams
from mizzen_worker.layers.collective import Collective, ProcessGroupCollective
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.runner_options import ComputeType, RunnerOptions, WeightFormat

TIMEOUT_S = 500
INTERPRETED_GPU = "interpreted GPU"
PAGE_SIZE = 16


@dataclass(frozen=True)
class Case:
    """One model and how it is computed: ``backend`` is torch, an instruction set, or a GPU.

    The latter is interpreted, all of a start on it.
    """

    name: str
    folder: str
    backend: str
    compute: str = "float32"
    is_dummy: bool = False
    is_deterministic: bool = False
    is_drawn: bool = True
    """Draws tokens too: then the least difference of two logits can be another token."""
    uses_graphs: bool = False


@dataclass
class Answer:
    """Of one request: its tokens, and what only rank 0 knows of them."""

    ids: list[int]
    logprobs: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """Between the two best tokens."""
    prompt_logprobs: list[float] = field(default_factory=list)


def answers(case: Case, collective: Collective | None) -> dict[str, Answer]:
    """Cold and in chunks, behind another's prefix beside strangers, and drawn with penalties."""
    if case.backend == INTERPRETED_GPU:
        return _answers_of_kernels(case, collective)
    weight_format = WeightFormat.DENSE if case.backend == "torch" else WeightFormat.AUTO
    options = RunnerOptions(
        model=Path(case.folder),
        kv_tokens=2048,
        page_size=PAGE_SIZE,
        max_slots=6,
        num_threads=1,
        compute_type=ComputeType(case.compute),
        weight_format=WeightFormat.DUMMY if case.is_dummy else weight_format,
        instruction_set=None if case.backend == "torch" else case.backend,
        is_deterministic=case.is_deterministic,
    )
    runner = load_runner(options, lambda done, total: None, collective=collective).runner
    driver = RunnerDriver(runner, has_scores=collective is None or collective.rank == 0)
    shared = _prompt(5, 2 * PAGE_SIZE)
    requests = {
        "chunked": _greedy(1, _prompt(1, 43), prompt_start=30),
        "owner": _greedy(2, [*shared, 7, 8, 9]),
        "guest": _greedy(3, [*shared, 50, 60]),
        "stranger": _greedy(4, _prompt(4, 47)),
    }
    chunked, owner, guest, stranger = requests.values()
    driver.generate(chunked, chunk=9)
    driver.generate(owner)
    driver.start(guest, owner.pages[:2])
    driver.start(stranger)
    driver.run([(stranger, 20), (guest, 1)])
    driver.run([(guest, 1), (stranger, 27)])
    driver.finish([guest, stranger])
    if case.is_drawn:
        requests["drawn"] = Driven(slot=5, prompt=_prompt(9, 12), sampling=_DRAWN)
        driver.generate(requests["drawn"])
    return {name: _answer(request) for name, request in requests.items()}


def _answers_of_kernels(case: Case, collective: Collective | None) -> dict[str, Answer]:
    """Steps of one token, of a few and of many, and their logits; drawn without penalties too."""
    with cpu_as_gpu():
        runner = start_interpreted(
            Path(case.folder),
            page_size=PAGE_SIZE,
            max_slots=3,
            context_length=64 if case.uses_graphs else 288,
            uses_graphs=case.uses_graphs,
            collective=collective,
        )
        driver = RunnerDriver(runner, has_scores=collective is None or collective.rank == 0)
        many = 20 if case.uses_graphs else 270
        requests = {
            "alone": _greedy(1, _prompt(1, 7), prompt_start=3),
            "long": _greedy(2, _prompt(2, many)),
            "drawn": Driven(slot=3, prompt=_prompt(3, 5), sampling=_PLAINLY_DRAWN),
        }
        alone, long, drawn = requests.values()
        driver.start(alone)
        driver.run([(alone, 7)])
        driver.run([(alone, 0)])
        driver.start(long)
        driver.start(drawn)
        driver.run([(long, many), (drawn, 3), (alone, 0)])
        driver.run([(drawn, 2), (long, 0)])
        driver.finish([alone, long, drawn])
    return {name: _answer(request) for name, request in requests.items()}


_PLAINLY_DRAWN = SamplingParams(max_new_tokens=5, seed=7, temperature=0.8, top_p=0.95)

_DRAWN = SamplingParams(
    max_new_tokens=9, seed=77, temperature=0.9, top_p=0.95, repetition_penalty=1.3,
    presence_penalty=0.4, logit_bias=((17, 2.0),), min_new_tokens=4,
)  # fmt: skip


def _prompt(seed: int, length: int) -> list[int]:
    """Not that of ``tiny_llama``, with which a rank would wait for transformers."""
    return np.random.default_rng(seed).integers(3, 199, length).tolist()


def _greedy(slot: int, prompt: list[int], prompt_start: int | None = None) -> Driven:
    logprobs = LogprobParams(num_top=2, prompt_start=prompt_start)
    sampling = SamplingParams(max_new_tokens=6, seed=1, temperature=0.0, logprobs=logprobs)
    return Driven(slot=slot, prompt=prompt, sampling=sampling)


def _answer(request: Driven) -> Answer:
    assert not request.error_tokens
    best = [sorted(top.values(), reverse=True) for top in request.tops]
    return Answer(
        ids=request.output,
        logprobs=request.logprobs,
        gaps=[first - second for first, second in best],
        prompt_logprobs=request.prompt_logprobs,
    )


def run_group(size: int, cases: Sequence[Case], folder: Path) -> list[dict[str, dict[str, Answer]]]:
    """Answers by rank, case and request."""
    folder.mkdir()
    (folder / "cases.json").write_text(json.dumps([asdict(case) for case in cases]))
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    if any(case.backend == INTERPRETED_GPU for case in cases):
        environment["TRITON_INTERPRET"] = "1"
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(size), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        told = [rank.communicate(timeout=TIMEOUT_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(told)
    return [_read(folder / f"{rank}.json") for rank in range(size)]


def _read(path: Path) -> dict[str, dict[str, Answer]]:
    found: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return {
        case: {request: Answer(**answer) for request, answer in requests.items()}
        for case, requests in found.items()
    }


def process_group(rank: int, size: int, store: dist.Store) -> dist.ProcessGroupGloo:
    """Over loopback."""
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=TIMEOUT_S)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(store, rank, size, options)


def _run_rank(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    cases = [Case(**case) for case in json.loads((folder / "cases.json").read_text())]
    group = process_group(rank, size, dist.FileStore(str(folder / "store"), size))
    collective = ProcessGroupCollective(group)
    found = {
        case.name: {name: asdict(answer) for name, answer in answers(case, collective).items()}
        for case in cases
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    # Threads of gloo may abort an interpreter that unloads beside them.
    os._exit(0)


if __name__ == "__main__":
    _run_rank(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
