"""Ranks in processes of their own give the tokens of one rank that has everything.

Every architecture, dense, GGUF and FP8 weights, plain torch and native kernels, 2 ranks with a KV
head each and 4 that share them in pairs. Sums over ranks are added in another order than one rank
adds, so logits differ by rounding: the equality rule holds, tokens are equal or first differ where
one rank's two best were closer than the rounding of the computation.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.scale import slow_case
from tests.worker.model_executor.rank_group import Answer, Case, answers, run_group
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.test_fp8_checkpoint import save_packed
from tests.worker.model_executor.tiny_gguf import write_gguf
from tests.worker.model_executor.tiny_models import VARIANTS, save_tiny

from mizzen_worker.contracts.batch import Runner
from mizzen_worker.contracts.errors import ConfigError, DeviceError, ModelLoadError
from mizzen_worker.kernels.native_library import INSTRUCTION_SETS
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.runner_options import RunnerOptions

NEAR_TIE = {"float32": 1e-4, "bfloat16": 0.4, "16-bit blocks": 0.01}
"""Of log-probabilities; native kernels round the inputs of quantised matrices to 16-bit blocks."""


@dataclass(frozen=True)
class Compared:
    """A case with the rounding of its computation, and the sizes of groups that can divide it."""

    case: Case
    rounding: str = "float32"
    sizes: tuple[int, ...] = (2, 4)


def _backends(variant: str) -> tuple[str, ...]:
    has_native = INSTRUCTION_SETS and not variant.startswith(("qwen3-moe", "mixtral"))
    return ("torch", INSTRUCTION_SETS[0]) if has_native else ("torch",)


def _save_cases(folder: Path) -> list[Compared]:
    found: list[Compared] = []

    def add(name: str, path: Path, backend: str, **changes: object) -> None:
        own = {key: changes.pop(key) for key in ("rounding", "sizes") if key in changes}
        case = Case(
            name=f"{name} {'torch' if backend == 'torch' else 'native'}",
            folder=str(path),
            backend=backend,
            **changes,
        )
        found.append(Compared(case=case, **own))

    for variant in sorted(VARIANTS):
        save_tiny(folder / variant, variant)
        for backend in _backends(variant):
            add(variant, folder / variant, backend)
    in_bfloat16 = {"compute": "bfloat16", "rounding": "bfloat16", "is_drawn": False}
    add("bfloat16", folder / "qwen3-biases", "torch", **in_bfloat16)
    add("deterministic", folder / "qwen2-window", "torch", is_deterministic=True)
    add("dummy", folder / "mixtral", "torch", is_dummy=True)
    save_tiny(folder / "wide", "llama3-biases", intermediate_size=128)
    half, packed = folder / "half.gguf", folder / "packed.gguf"
    write_gguf(folder / "wide", half)
    write_gguf(folder / "wide", packed, quantised="Q8_0")
    for form in ("blocks", "rows"):
        (folder / form).mkdir()
        save_packed(folder / form, form)
    for backend in _backends("llama"):
        is_exact = backend == "torch"
        rounding = "float32" if is_exact else "16-bit blocks"
        add("gguf-half", half, backend)
        # Four ranks would cut the 64 columns of attention's output inside a block.
        add("gguf-packed", packed, backend, rounding=rounding, sizes=(2,), is_drawn=is_exact)
        # And two halves of the blocks of FP8 are all that there are.
        add("fp8-blocks", folder / "blocks", backend, sizes=(2,))
        add("fp8-rows", folder / "rows", backend)
    return found


QUICK = {
    2: (
        *("llama3-biases torch", "llama3-biases native", "qwen2 torch", "qwen2-window native"),
        *("qwen3-biases torch", "qwen3 native", "qwen3-moe torch", "mixtral-window torch"),
        *("gguf-packed torch", "gguf-packed native", "fp8-blocks torch", "bfloat16 torch"),
        *("mistral-window native", "dummy torch", "deterministic torch"),
    ),
    4: ("llama3-biases native", "qwen3-moe torch"),
}
"""What each edit runs; ``make test`` runs every case."""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[Compared]:
    return _save_cases(tmp_path_factory.mktemp("models"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("size", "chosen"), [(2, "quick"), (4, "quick"), slow_case(2, "all"), slow_case(4, "all")]
)
def test_ranks_give_the_tokens_of_one(
    size: int, chosen: str, compared: list[Compared], tmp_path: Path
) -> None:
    entries = [entry for entry in compared if size in entry.sizes]
    if chosen == "quick":
        entries = [entry for entry in entries if entry.case.name in QUICK[size]]
    cases = [entry.case for entry in entries]
    alone = {case.name: answers(case, None) for case in cases}
    leader, *followers = run_group(size, cases, tmp_path / "group")
    near_ties = []
    for entry in entries:
        name = entry.case.name
        for request, expected in alone[name].items():
            found = leader[name][request]
            for follower in followers:
                assert follower[name][request] == Answer(ids=found.ids), (name, request)
            place = first_difference(expected, found, entry.rounding, f"{name} {request}")
            if place is not None:
                near_ties.append((name, request, place))
    print(f"\n{size} ranks: {len(entries)} models, near ties: {near_ties}")
    assert len(near_ties) <= len(entries) // 4


def first_difference(expected: Answer, found: Answer, rounding: str, what: str) -> int | None:
    """Where tokens differ first, at a near tie; everything before is equal within rounding."""
    pairs = enumerate(zip(expected.ids, found.ids, strict=True))
    count = next((index for index, (theirs, ours) in pairs if theirs != ours), None)
    if count is not None:
        assert expected.gaps[count] < NEAR_TIE[rounding], f"{what}: {expected}, {found}"
    for theirs, ours in (
        (expected.logprobs[:count], found.logprobs[:count]),
        (expected.prompt_logprobs, found.prompt_logprobs),
    ):
        assert ours == pytest.approx(theirs, abs=NEAR_TIE[rounding]), what
    return count


class OneOfTwo:
    """Rank 0 of two; the other was lost after ``num_answers`` exchanges."""

    rank, size = 0, 2

    def __init__(self, num_answers: int = 0) -> None:
        self._num_left = num_answers

    def sum_over_ranks(self, values: torch.Tensor) -> None:
        self._answer()

    def gather_columns(self, values: torch.Tensor) -> torch.Tensor:
        self._answer()
        return torch.cat([values, values], dim=1)

    def copy_from_leader(self, values: torch.Tensor) -> None:
        self._answer()

    def _answer(self) -> None:
        self._num_left -= 1
        if self._num_left < 0:
            raise RuntimeError("Connection closed by peer")


def _load(folder: Path, collective: OneOfTwo) -> Runner:
    options = RunnerOptions(model=folder, kv_tokens=256, page_size=16, max_slots=2, num_threads=1)
    return load_runner(options, lambda done, total: None, collective=collective).runner


def test_a_rank_that_is_lost_is_an_error_of_the_device(tmp_path: Path) -> None:
    """At every exchange of two steps; a rank loads without the others, however slow they are."""
    save_tiny(tmp_path, "llama", num_hidden_layers=1)
    num_exchanges = 2 * (1 + 2 + 1 + 1)
    for num_answers in range(num_exchanges):
        driver = RunnerDriver(_load(tmp_path, OneOfTwo(num_answers)))
        request = Driven(slot=1, prompt=[5, 6, 7], sampling=greedy(2))
        driver.start(request)
        with pytest.raises(DeviceError, match=r"step [12] failed on the device: Connection closed"):
            _two_steps(driver, request)
    driver = RunnerDriver(_load(tmp_path, OneOfTwo(num_exchanges)))
    request = Driven(slot=1, prompt=[5, 6, 7], sampling=greedy(2))
    driver.start(request)
    _two_steps(driver, request)
    assert len(request.output) == 2


def _two_steps(driver: RunnerDriver, request: Driven) -> None:
    driver.run([(request, 3)])
    driver.run([(request, 0)])


def test_a_model_that_ranks_cannot_divide_is_refused_before_weights_are_read(
    tmp_path: Path,
) -> None:
    save_tiny(tmp_path, "llama", intermediate_size=97)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    sentence = (
        "--tensor-parallel-size: 2 does not divide the model's intermediate size of 97; use 1"
    )
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, OneOfTwo())
    assert str(raised.value) == sentence


def test_columns_of_blocks_that_ranks_would_cut_are_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", intermediate_size=96)
    write_gguf(tmp_path, tmp_path / "packed.gguf", quantised="Q8_0")
    with pytest.raises(ModelLoadError) as raised:
        _load(tmp_path / "packed.gguf", OneOfTwo())
    assert str(raised.value) == (
        f"{tmp_path}/packed.gguf: tensor blk.0.ffn_down.weight (Q8_0) cannot be divided among "
        "ranks: columns 0 to 48 cut a block of 32; lower --tensor-parallel-size, or use an "
        "unquantised model"
    )
