"""A start in its order, with a tiny model where a GPU would be."""

import errno
import json
import os
import re
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import triton
from tests.worker.kernels.gpu.compiled_process import run_compiling
from tests.worker.model_executor.tiny_models import save_tiny

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.contracts.errors import ConfigError, DeviceError
from mizzen_worker.memory.device_pool import DevicePool, PoolShape
from mizzen_worker.model_executor.batch_check import require_sound
from mizzen_worker.model_executor.gpu_start import ForwardMaker, GpuStart
from mizzen_worker.model_executor.kernel_cache import KernelFolder
from mizzen_worker.model_executor.load_phase import LoadPhase, PhaseClock
from mizzen_worker.model_executor.memory_profile import SizingRequest
from mizzen_worker.model_executor.model_runner import ModelRunner
from mizzen_worker.model_executor.runner_options import ComputeType, RunnerOptions
from mizzen_worker.model_executor.runner_parts import device_of, load_torch, pool_shape
from mizzen_worker.model_executor.valueless import VALUELESS, ValuelessLink
from mizzen_worker.model_executor.warm_up import warm_up_steps
from mizzen_worker.model_executor.weights.checkpoint import open_checkpoint
from mizzen_worker.model_executor.weights.progress import ProgressCallback

CPU = torch.device("cpu")
PAGE_BYTES = 16_384


class _Meter:
    """A device on which everything fits and nothing grows."""

    def release(self) -> None:
        """Nothing is kept."""

    def free_and_total(self) -> tuple[int, int]:
        return 1 << 20, 1 << 20

    def held(self) -> int:
        return 0

    def reset_peak(self) -> None:
        """There is none."""

    def peak(self) -> int:
        return 0


def _start(folder: Path, cache: Path) -> GpuStart:
    checkpoint = open_checkpoint(folder)
    facts = checkpoint.facts
    limits = RunnerLimits(
        max_slots=4,
        num_pages=1,
        page_size=16,
        context_length=facts.context_length,
        vocab_size=facts.shape.vocab_size,
    )
    options = RunnerOptions(
        model=folder,
        kv_tokens=None,
        page_size=16,
        max_slots=4,
        compute_type=ComputeType.FLOAT32,
    )

    def load(place: torch.device, progress: ProgressCallback) -> ForwardMaker:
        return load_torch(options, checkpoint, place, limits.context_length, progress)

    def make(make_forward: ForwardMaker, limits: RunnerLimits, place: torch.device) -> ModelRunner:
        pool = DevicePool(pool_shape(facts, limits), torch.float32, place)
        link = ValuelessLink() if place == VALUELESS else None
        return ModelRunner(make_forward(pool), limits, place, link)

    return GpuStart(
        device=CPU,
        capability=90,
        sizing=SizingRequest(
            limits=limits,
            max_new_tokens=64,
            page_bytes=PAGE_BYTES,
            kv_tokens=None,
            fraction=0.5,
            num_graphs=0,
        ),
        meter=_Meter(),
        folder=KernelFolder(path=cache, environment={}),
        facts="tiny",
        load=load,
        make_runner=make,
    )


@pytest.mark.parametrize("variant", ["llama", "qwen3"])
def test_a_start_goes_through_its_phases_and_takes_what_is_left(
    tmp_path: Path, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path, variant)
    # Kernels under test here are interpreted: none is made, and Triton's own folder stays.
    monkeypatch.setattr(KernelFolder, "fill", lambda *_, **__: None)
    monkeypatch.setattr(triton.knobs.cache, "dir", triton.knobs.cache.dir)
    start = _start(tmp_path, tmp_path / "kernels")
    phases: list[LoadPhase] = []
    runner = start.run(lambda done, total: None, phases.append)
    assert phases == [phase for phase in LoadPhase if phase is not LoadPhase.RANKS]
    assert runner.limits.num_pages == (1 << 19) // PAGE_BYTES - 1


@pytest.mark.slow
def test_every_model_runs_without_values_and_tells_its_kernels() -> None:
    printed = run_compiling("tests.worker.model_executor.valueless_start")
    found = json.loads(printed.splitlines()[-1])
    assert found["missed"] == [[]] * len(found["kernels"]), "launched only when it is captured"
    of_scores = {"_penalise_kernel", "_score_kernel"}
    for names, is_scoring in zip(found["kernels"], found["scoring"], strict=True):
        assert {"_stage_step", "_record_best", "_choice_kernel"} <= set(names)
        asked = of_scores if is_scoring else set()
        assert of_scores & set(names) == asked, "the trial step asks for both"


@pytest.mark.parametrize(
    ("context_length", "num_pages", "max_new_tokens", "most"),
    [(4096, 1000, 512, 512), (100, 1000, 512, 83), (4096, 8, 512, 96), (64, 2, 512, None)],
)
def test_warm_up_keeps_to_the_context_and_the_pool(
    context_length: int, num_pages: int, max_new_tokens: int, most: int | None
) -> None:
    limits = RunnerLimits(
        max_slots=2,
        num_pages=num_pages,
        page_size=16,
        context_length=context_length,
        vocab_size=8,
    )
    steps = list(warm_up_steps(limits, max_new_tokens=max_new_tokens))
    for step in steps:
        require_sound(step, limits)
    lengths = [row.num_new for step in steps for row in step.extends]
    assert max(lengths, default=None) == most
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))


@pytest.mark.parametrize(
    ("context_length", "num_pages", "expected"),
    [(9000, 1000, [1, 2, 4, 8, 16, 32]), (100, 1000, [1, 2, 4, 8, 16, 32]), (9000, 40, [1, 2, 4])],
)
def test_warm_up_runs_beside_any_number_of_long_rows(
    context_length: int, num_pages: int, expected: list[int]
) -> None:
    limits = RunnerLimits(
        max_slots=40,
        num_pages=num_pages,
        page_size=16,
        context_length=context_length,
        vocab_size=8,
    )
    few = list(warm_up_steps(limits, max_new_tokens=2048))
    every = list(warm_up_steps(limits, max_new_tokens=2048, uncaptured_tokens=513))
    for step in every[len(few) :]:
        require_sound(step, limits)
        assert sum(row.num_new for row in step.extends) == min(513, context_length - 1)
        assert set(step.decodes.starts.tolist()) == {min(context_length, 4096) - 1}
    assert [len(step.decodes.slots) for step in every[len(few) :]] == expected
    assert [step.step for step in every] == list(range(1, len(every) + 1))


def test_a_folder_that_cannot_be_written_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    folder = KernelFolder(path=tmp_path / "file" / "kernels", environment={})
    folder.fill(lambda: None, facts="", capability=90, progress=lambda done, total: None)
    assert "kernels are compiled one after the other" in caplog.text


def test_a_folder_that_triton_cannot_use_is_refused_unless_it_was_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton.knobs.cache, "dir", triton.knobs.cache.dir)
    (tmp_path / "file").touch()
    folder = KernelFolder(path=tmp_path / "file" / "kernels", environment={})
    with pytest.raises(ConfigError, match=r"--compile-cache: .* cannot be written \(Not a dir"):
        folder.use()

    def full(dir: Path) -> NoReturn:  # noqa: A002 - the name of what it stands for
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    folder = KernelFolder(path=tmp_path / "kernels", environment={})
    with pytest.raises(ConfigError, match=r"\(No space left on device\); give a folder"):
        folder.use()
    (tmp_path / "kernels" / "0123.filled").touch()
    folder.use()
    assert triton.knobs.cache.dir == str(tmp_path / "kernels")


def test_a_pool_is_one_piece_of_zeros_whose_layers_do_not_overlap() -> None:
    shape = PoolShape(num_layers=2, num_pages=3, page_size=4, num_kv_heads=2, head_dim=8)
    pool = DevicePool(shape, torch.float32, CPU)
    parts = [part for layer in range(2) for part in (pool.keys(layer), pool.values(layer))]
    assert all(tuple(part.shape) == (16, 2, 8) and part.is_contiguous() for part in parts)
    for number, part in enumerate(parts):
        assert not part.any()
        part.fill_(number + 1)
    assert [float(part.max()) for part in parts] == [1, 2, 3, 4]
    assert shape.page_values * 4 == parts[0].numel() * 4


@pytest.mark.parametrize("error", [DeviceError("a value was asked for"), IndexError("1")])
def test_a_run_without_values_that_fails_is_no_failure_of_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail() -> None:
        raise error

    folder = KernelFolder(path=tmp_path, environment={})
    folder.fill(fail, facts="", capability=90, progress=lambda done, total: None)
    assert "kernels are compiled one after the other" in caplog.text
    assert not list(tmp_path.glob("*.filled"))


@pytest.mark.parametrize(
    ("device", "num_gpus", "sentence"),
    [
        ("gpu", 2, "--device: 'gpu' is not known; use cpu, cuda or cuda:INDEX"),
        ("meta", 2, "--device: 'meta' is not known"),
        ("cuda:x", 2, "--device: 'cuda:x' is not known"),
        ("cuda", 0, "--device: 'cuda', but torch sees no CUDA device; use --device cpu"),
        ("cuda:2", 2, "--device: 'cuda:2', but GPUs here are 0 to 1; use one of them"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    device: str, num_gpus: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    options = RunnerOptions(model=Path("m"), kv_tokens=16, page_size=16, max_slots=1, device=device)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        device_of(options)


def test_phases_are_timed_and_passed_on() -> None:
    now = [0.0]
    entered: list[LoadPhase] = []
    clock = PhaseClock(entered.append, clock=lambda: now[0])
    for phase, seconds in ((LoadPhase.WEIGHTS, 2.5), (LoadPhase.GRAPHS, 4.0)):
        clock.enter(phase)
        now[0] += seconds
    assert clock.finish() == {"loading weights": 2.5, "capturing graphs": 4.0}
    assert entered == [LoadPhase.WEIGHTS, LoadPhase.GRAPHS]
