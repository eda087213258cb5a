"""The runner on tiny random models equals transformers: cold, chunked, batched, with a prefix."""

from pathlib import Path

import numpy as np
import pytest
from tests.worker.kernels.native_harness import INSTRUCTION_SET_PARAMS
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.tiny_llama import (
    random_prompt,
    reference_greedy,
    save_tiny_llama,
)
from tests.worker.model_executor.tiny_models import ON_CUDA, TORCH_BACKENDS, load_tiny_model
from transformers import LlamaForCausalLM

from mizzen_worker.contracts.batch import (
    DecodeRows,
    ExtendRow,
    PageWrite,
    PrefixGroup,
    ScheduleBatch,
)
from mizzen_worker.contracts.errors import ConfigError, StepError
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.model_executor.factory import LoadedModel, load_runner
from mizzen_worker.model_executor.runner_options import RunnerOptions, WeightFormat

CONFIGS = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "single-kv-head": {"num_key_value_heads": 1},
    "wide-head": {"head_dim": 32, "num_key_value_heads": 4},
    "llama3-rope": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "linear-rope": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
}


EVERY_BACKEND = pytest.mark.parametrize("backend", ["torch", ON_CUDA, *INSTRUCTION_SET_PARAMS])


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, save_tiny_llama(folder, **CONFIGS[request.param])


def test_unknown_instruction_set_is_refused(grouped: tuple[Path, LlamaForCausalLM]) -> None:
    with pytest.raises(ConfigError, match="instruction set 'mmx' is not available; here are: "):
        load(grouped[0], backend="mmx")


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("grouped-only")
    return folder, save_tiny_llama(folder)


def load(
    folder: Path, page_size: int = 16, backend: str = "torch", **changes: object
) -> LoadedModel:
    return load_tiny_model(folder, backend, page_size, **{"kv_tokens": 1024, **changes})


@EVERY_BACKEND
@pytest.mark.parametrize("page_size", [1, 16])
def test_greedy_equals_transformers(
    tiny: tuple[Path, LlamaForCausalLM], page_size: int, backend: str
) -> None:
    folder, model = tiny
    driver = RunnerDriver(load(folder, page_size, backend).runner)
    prompt = random_prompt(1, 37)
    output = driver.generate(Driven(slot=1, prompt=prompt, sampling=greedy(12)))
    assert output == reference_greedy(model, prompt, 12)


@EVERY_BACKEND
@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-39])
def test_a_temperature_too_small_for_a_float32_is_greedy(
    grouped: tuple[Path, LlamaForCausalLM], temperature: float, backend: str
) -> None:
    folder, model = grouped
    runner = load(folder, backend=backend).runner
    if backend in TORCH_BACKENDS:
        runner._instruction_set = None  # As on a GPU, or without the native extension.
    driver = RunnerDriver(runner)
    prompt = random_prompt(4, 9)
    sampling = SamplingParams(max_new_tokens=8, seed=3, temperature=temperature)
    output = driver.generate(Driven(slot=1, prompt=prompt, sampling=sampling))
    assert output == reference_greedy(model, prompt, 8)


@EVERY_BACKEND
@pytest.mark.parametrize("page_size", [1, 16])
def test_every_chunk_boundary_gives_the_same_tokens(
    grouped: tuple[Path, LlamaForCausalLM], page_size: int, backend: str
) -> None:
    folder, model = grouped
    driver = RunnerDriver(load(folder, page_size, backend).runner)
    prompt = random_prompt(2, 21)
    expected = reference_greedy(model, prompt, 4)
    for chunk in range(1, len(prompt) + 1):
        request = Driven(slot=1 + chunk % 6, prompt=prompt, sampling=greedy(4))
        assert driver.generate(request, chunk) == expected, chunk
        driver.release(request)


@EVERY_BACKEND
@pytest.mark.parametrize("page_size", [1, 16])
def test_strangers_in_the_batch_change_nothing(
    grouped: tuple[Path, LlamaForCausalLM], page_size: int, backend: str
) -> None:
    folder, model = grouped
    driver = RunnerDriver(load(folder, page_size, backend).runner)
    requests = [
        Driven(slot=slot, prompt=random_prompt(slot, 5 + 9 * slot), sampling=greedy(6))
        for slot in range(1, 5)
    ]
    for request in requests:
        driver.start(request)
    first, second, third, fourth = requests
    driver.run([(first, len(first.prompt)), (second, 7)])
    driver.run([(second, len(second.prompt) - 7), (third, 11), (first, 0)])
    driver.run([(third, len(third.prompt) - 11), (fourth, len(fourth.prompt)), (first, 0)])
    driver.finish(requests)
    for request in requests:
        assert request.output == reference_greedy(model, request.prompt, 6), request.slot


@EVERY_BACKEND
@pytest.mark.parametrize("page_size", [1, 16])
def test_prefix_pages_of_another_request_are_as_good(
    grouped: tuple[Path, LlamaForCausalLM], page_size: int, backend: str
) -> None:
    folder, model = grouped
    driver = RunnerDriver(load(folder, page_size, backend).runner)
    shared = random_prompt(5, 32)
    owner = Driven(slot=1, prompt=[*shared, 7, 8, 9], sampling=greedy(3))
    driver.generate(owner)
    guest = Driven(slot=2, prompt=[*shared, 50, 60], sampling=greedy(5))
    driver.start(guest, owner.pages[: 32 // page_size])
    driver.prefill(guest)
    driver.finish([guest])
    assert guest.output == reference_greedy(model, guest.prompt, 5)


def test_reused_slot_and_pages_leave_no_trace(grouped: tuple[Path, LlamaForCausalLM]) -> None:
    folder, model = grouped
    driver = RunnerDriver(load(folder, kv_tokens=64).runner)
    for seed in range(4):
        request = Driven(slot=1, prompt=random_prompt(seed, 40 - 3 * seed), sampling=greedy(5))
        assert driver.generate(request) == reference_greedy(model, request.prompt, 5)
        driver.release(request)


def test_finished_row_launched_again_writes_no_kv(
    grouped: tuple[Path, LlamaForCausalLM],
) -> None:
    folder, model = grouped
    driver = RunnerDriver(load(folder).runner)
    prompt = random_prompt(1, 14)
    ended = Driven(slot=1, prompt=prompt, sampling=greedy(2))
    driver.generate(ended)
    shared = ended.pages[:1]
    guest = Driven(slot=2, prompt=[*prompt, ended.output[0], 9, 11], sampling=greedy(4))
    driver.start(guest)
    guest.pages, guest.num_computed = list(shared), 15
    driver._write(guest, 0)
    driver.prefill(guest)  # writes position 15 of the page that both have
    assert ended.num_computed == 15
    driver.run([(ended, 0)])  # would write position 15 too
    driver.finish([guest])
    assert guest.output == reference_greedy(model, guest.prompt, 4)


def test_min_new_tokens_holds_stop_ids_back(grouped: tuple[Path, LlamaForCausalLM]) -> None:
    folder, model = grouped
    driver = RunnerDriver(load(folder).runner)
    prompt = random_prompt(1, 10)
    expected = reference_greedy(model, prompt, 3)
    sampling = SamplingParams(
        max_new_tokens=6, seed=1, temperature=0.0, min_new_tokens=2, stop_token_ids=(expected[0],)
    )
    output = driver.generate(Driven(slot=1, prompt=prompt, sampling=sampling, eos=(expected[1],)))
    assert expected[0] not in output[:2]
    assert expected[1] not in output[:2]


def extend_row(**changes: object) -> ExtendRow:
    values: dict[str, object] = {
        "request_id": "r",
        "slot": 1,
        "start": 0,
        "num_new": 1,
        "token_ids": np.array([1], dtype=np.int32),
        "is_sampled": True,
    }
    values.update(changes)
    return ExtendRow(**values)


def batch_of(
    *rows: ExtendRow,
    decodes: tuple[tuple[int, int], ...] = (),
    writes: tuple[PageWrite, ...] = (),
    groups: tuple[tuple[int, int, int], ...] = (),
) -> ScheduleBatch:
    return ScheduleBatch(
        step=1,
        extends=rows,
        decodes=DecodeRows(
            slots=np.array([slot for slot, _ in decodes], dtype=np.int32),
            starts=np.array([start for _, start in decodes], dtype=np.int32),
            groups=tuple(
                PrefixGroup(first=first, count=count, num_tokens=num_tokens)
                for first, count, num_tokens in groups
            ),
        ),
        slot_inits=(),
        page_writes=writes,
    )


def ids_of(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def unsampled_row(**changes: object) -> ExtendRow:
    return extend_row(is_sampled=False, **changes)


def page_write(first_page: int, *pages: int) -> PageWrite:
    return PageWrite(slot=1, first_page=first_page, pages=np.array(pages, dtype=np.int32))


DECODES = ((1, 40), (2, 50), (3, 60))


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (batch_of(extend_row(slot=0)), "slot 0 is not in 1..6"),
        (batch_of(extend_row(slot=7)), "slot 7 is not in 1..6"),
        (batch_of(extend_row(), extend_row()), "two rows have the same slot"),
        (batch_of(extend_row(start=256)), "not within the context of 256"),
        (batch_of(extend_row(token_ids=np.array([1, 2], np.int32))), "2 token ids for 1"),
        (batch_of(extend_row(token_ids=np.array([199], np.int32))), "outside the vocabulary"),
        (batch_of(extend_row(target_ids=ids_of(5))), "targets follow positions 0 to 0, the row"),
        (
            batch_of(unsampled_row(target_start=1, target_ids=ids_of(5))),
            "targets follow positions 1",
        ),
        (batch_of(unsampled_row(target_ids=ids_of(199))), "a target id is outside"),
        (batch_of(decodes=((0, 3),)), "decode row of slot 0"),
        (batch_of(decodes=((1, 3), (7, 3))), "decode row of slot 7"),
        (batch_of(decodes=((1, 256),)), "at position 256"),
        (batch_of(extend_row(), decodes=((1, 3),)), "two rows have the same slot"),
        (batch_of(decodes=DECODES, groups=((0, 4, 16),)), "a group of decode rows 0 to 3 of 3"),
        (batch_of(decodes=DECODES, groups=((1, 2, 16), (0, 1, 16))), "ends before row 3"),
        (batch_of(decodes=DECODES, groups=((0, 2, 24),)), "share 24 positions in pages of 16"),
        (batch_of(decodes=DECODES, groups=((0, 2, 0),)), "share 0 positions"),
        (batch_of(decodes=DECODES, groups=((0, 2, 48),)), "the shortest has 40"),
        (batch_of(extend_row(), writes=(page_write(0, 0),)), "a page is not in 1..64"),
        (batch_of(extend_row(), writes=(page_write(0, 65),)), "a page is not in 1..64"),
        (batch_of(extend_row(), writes=(page_write(15, 1, 2),)), "page writes end at 17"),
    ],
)
def test_breach_of_the_batch_contract_is_a_step_error(
    grouped: tuple[Path, LlamaForCausalLM], batch: ScheduleBatch, text: str
) -> None:
    runner = load(grouped[0]).runner
    with pytest.raises(StepError, match=text):
        runner.launch(batch)


def test_step_error_changes_nothing(grouped: tuple[Path, LlamaForCausalLM]) -> None:
    folder, model = grouped
    driver = RunnerDriver(load(folder).runner)
    request = Driven(slot=1, prompt=random_prompt(8, 20), sampling=greedy(6))
    driver.start(request)
    driver.prefill(request)
    with pytest.raises(StepError):
        driver.runner.launch(batch_of(extend_row(start=999), writes=(page_write(0, 5, 6),)))
    driver.finish([request])
    assert request.output == reference_greedy(model, request.prompt, 6)


def test_dummy_weights_need_only_the_config(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    calls: list[tuple[int, int]] = []
    options = RunnerOptions(
        model=tmp_path, kv_tokens=64, page_size=4, max_slots=2, weight_format=WeightFormat.DUMMY
    )
    loaded = load_runner(options, lambda done, total: calls.append((done, total)))
    request = Driven(slot=1, prompt=[3, 4, 5], sampling=greedy(4))
    assert len(RunnerDriver(loaded.runner).generate(request)) == 4
    assert calls[0][0] == 0
    assert calls[-1][0] == calls[-1][1] > 0
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_context_length_above_the_models_is_refused(
    grouped: tuple[Path, LlamaForCausalLM],
) -> None:
    with pytest.raises(ConfigError, match="--context-length: 512 is more than the model's 256"):
        load(grouped[0], context_length=512)
