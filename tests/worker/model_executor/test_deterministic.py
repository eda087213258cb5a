"""``is_deterministic``: logits and tokens of a request are the same to the last bit in any company.

Random requests run in random batches, chunks and orders, cold and behind prefixes that others
computed; every logit equals that of the same request alone and in one piece.
"""

import numpy as np
import pytest
import torch
from tests.scale import count
from tests.worker.kernels.native_harness import INSTRUCTION_SET_PARAMS
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.tiny_llama import random_prompt
from tests.worker.model_executor.tiny_models import (
    ARCHITECTURES,
    IN_PLAIN_TORCH,
    ON_CUDA,
    TORCH_BACKENDS,
    LogitsRecorder,
    load_tiny,
    save_tiny,
)

from mizzen_worker.model_executor.runner_options import ComputeType

PAGE_SIZE = 4
NUM_NEW = 5

ALWAYS = ["torch", ON_CUDA]
EVERY_BACKEND = pytest.mark.parametrize("backend", [*ALWAYS, *INSTRUCTION_SET_PARAMS])

SHARED = random_prompt(100, 70)


def prompts_of(backend: str) -> list[list[int]]:
    """Some share a prefix; on native kernels some cross the borders of tiles and blocks."""
    lengths = (3, 17, 41) if backend in TORCH_BACKENDS else (3, 63, 255, 258, 390)
    own = [random_prompt(seed, length) for seed, length in enumerate(lengths)]
    shared = SHARED[: 24 if backend in TORCH_BACKENDS else 70]
    return [*own, shared + random_prompt(7, 9), shared + random_prompt(8, 2)]


class Run:
    """Drives requests and keeps each one's logits."""

    def __init__(self, runner) -> None:
        self.driver, self.recorder = RunnerDriver(runner), LogitsRecorder(runner)

    def step(self, parts: list[tuple[Driven, int]], logits: dict[int, list[torch.Tensor]]) -> None:
        """``parts``: prefills first, as in a batch."""
        before = [len(request.output) for request, _ in parts]
        self.driver.run(parts)
        rows = iter(self.recorder.take())
        for (request, _), num_before in zip(parts, before, strict=True):
            if len(request.output) > num_before:
                logits[request.slot].append(next(rows))

    def alone(self, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
        request = Driven(slot=1, prompt=prompt, sampling=greedy(NUM_NEW))
        self.driver.generate(request)
        self.driver.release(request)
        return request.output, self.recorder.take()

    def together(self, prompts: list[list[int]], seed: int) -> list[tuple[list[int], torch.Tensor]]:
        """Random companions and chunks; the last prompt may build on the one before it."""
        rng = np.random.default_rng(seed)
        requests = [
            Driven(slot=slot, prompt=prompt, sampling=greedy(NUM_NEW))
            for slot, prompt in enumerate(prompts, 1)
        ]
        logits: dict[int, list[torch.Tensor]] = {request.slot: [] for request in requests}
        owner, guest = requests[-2:]
        for request in requests[:-1]:
            self.driver.start(request)
        is_guest_in = False
        while live := [r for r in requests if len(r.output) < NUM_NEW]:
            if not is_guest_in and owner.num_computed >= len(owner.prompt):
                self.driver.start(guest, owner.pages[: len(owner.prompt) // 2 // PAGE_SIZE])
                is_guest_in = True
            ready = [r for r in live if is_guest_in or r is not guest]
            some = [r for r in ready if rng.random() < 0.6] or ready[:1]
            rng.shuffle(some)
            parts = []
            for request in some:
                rest = len(request.prompt) - request.num_computed
                parts.append((request, int(rng.integers(1, rest + 1)) if rest > 0 else 0))
            self.step(sorted(parts, key=lambda part: part[1] == 0), logits)
        for request in requests[:-1]:
            self.driver.release(request)
        shared = len(owner.prompt) // 2 // PAGE_SIZE
        self.driver._free.extend(guest.pages[shared:])
        return [(r.output, torch.stack(logits[r.slot])) for r in requests]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("tiny-architectures")
    for variant in ARCHITECTURES:
        save_tiny(folder / variant, variant)
    return {variant: folder / variant for variant in ARCHITECTURES}


def check_other_threads(folder, backend: str, kind: ComputeType, prompts, expected) -> None:
    """A worker with another number of threads goes on with the same bits."""
    runner = load_tiny(folder, backend, 16, num_threads=3, compute_type=kind, is_deterministic=True)
    other = Run(runner)
    for prompt, (ids, logits) in zip(prompts, expected, strict=True):
        found_ids, found = other.alone(prompt)
        assert found_ids == ids
        assert torch.equal(found, logits)


@EVERY_BACKEND
@pytest.mark.parametrize("variant", [v for v in ARCHITECTURES if v not in IN_PLAIN_TORCH])
def test_logits_depend_on_the_request_alone(folders, variant: str, backend: str) -> None:
    check_alone_and_together(folders, variant, backend)


@pytest.mark.parametrize("backend", ALWAYS)
@pytest.mark.parametrize("variant", IN_PLAIN_TORCH)
def test_logits_of_experts_depend_on_the_request_alone(folders, variant: str, backend: str) -> None:
    check_alone_and_together(folders, variant, backend)


def check_alone_and_together(folders, variant: str, backend: str) -> None:
    kind = ComputeType.BFLOAT16 if variant == "qwen2" else ComputeType.FLOAT32
    run = Run(
        load_tiny(
            folders[variant],
            backend,
            PAGE_SIZE,
            kv_tokens=3072,
            max_slots=8,
            compute_type=kind,
            is_deterministic=True,
        )
    )
    prompts = prompts_of(backend)
    expected = [run.alone(prompt) for prompt in prompts]
    if backend not in TORCH_BACKENDS:
        check_other_threads(folders[variant], backend, kind, prompts[-3:], expected[-3:])
    for seed in range(count(check=2, full=12)):
        for (ids, logits), (found_ids, found) in zip(
            expected, run.together(prompts, seed), strict=True
        ):
            assert found_ids == ids
            assert torch.equal(found, logits)
