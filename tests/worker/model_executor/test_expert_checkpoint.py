"""Checkpoints with experts: both forms of their tensors, and what config.json may not say."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.tiny_llama import random_prompt, reference_greedy
from tests.worker.model_executor.tiny_models import load_tiny, save_tiny

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.runner_options import RunnerOptions, WeightFormat
from mizzen_worker.model_executor.weights.checkpoint import open_checkpoint

WITH_EXPERTS = pytest.mark.parametrize("variant", ["qwen3-moe", "mixtral"])


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def fail(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load_tiny(folder, "torch")
    return str(caught.value)


@WITH_EXPERTS
def test_one_tensor_for_all_experts_is_read_as_well(tmp_path: Path, variant: str) -> None:
    model = save_tiny(tmp_path, variant)
    per_expert = set(load_file(tmp_path / "model.safetensors"))
    model.save_pretrained(tmp_path, save_original_format=False)
    fused = load_file(tmp_path / "model.safetensors")
    assert "model.layers.0.mlp.experts.gate_up_proj" in fused
    assert not per_expert & {name for name in fused if "expert" in name}
    runner = load_tiny(tmp_path, "torch")
    prompt = random_prompt(5, 11)
    request = Driven(slot=1, prompt=prompt, sampling=greedy(6))
    assert RunnerDriver(runner).generate(request) == reference_greedy(model, prompt, 6)


def test_a_fused_tensor_of_another_size_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, "qwen3-moe").save_pretrained(tmp_path, save_original_format=False)
    change_config(tmp_path, moe_intermediate_size=32)
    assert "experts.gate_up_proj has shape (7, 96, 64), config.json asks for more" in fail(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    weights[name] = torch.zeros(weights[name].shape, dtype=torch.int8)
    save_file(weights, tmp_path / "model.safetensors")
    change_config(tmp_path, moe_intermediate_size=48)
    assert f"tensor {name} has type torch.int8; use unquantised weights" in fail(tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than num_local_experts 7"),
        ({"num_local_experts": -1}, "num_local_experts is -1, an integer from 0"),
        ({"mlp_only_layers": "all"}, "mlp_only_layers is 'all', a list of layers is needed"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0, an integer from 1"),
        ({"num_local_experts": 6}, "mlp.gate.weight has shape (7, 64), config.json asks for"),
        ({"num_local_experts": 8}, "mlp.gate.weight has shape (7, 64), config.json asks for"),
        ({"mlp_only_layers": []}, "layers.1.mlp.gate.weight is in none"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, changes: dict[str, object], text: str) -> None:
    save_tiny(tmp_path, "qwen3-moe")
    change_config(tmp_path, **changes)
    assert text in fail(tmp_path)


def test_layers_with_experts_are_those_that_the_config_means(tmp_path: Path) -> None:
    def layers() -> frozenset[int] | None:
        experts = open_checkpoint(tmp_path).facts.shape.experts
        return None if experts is None else experts.layers

    save_tiny(tmp_path, "qwen3-moe")
    assert layers() == {0, 2}
    change_config(tmp_path, decoder_sparse_step=2)
    assert layers() is None
    change_config(tmp_path, mlp_only_layers=[0])
    assert layers() == {1}


@WITH_EXPERTS
def test_made_up_weights_count_every_byte(tmp_path: Path, variant: str) -> None:
    save_tiny(tmp_path, variant)
    calls: list[tuple[int, int]] = []
    options = RunnerOptions(
        model=tmp_path,
        kv_tokens=64,
        page_size=8,
        max_slots=2,
        weight_format=WeightFormat.DUMMY,
    )
    load_runner(options, lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1]
    before_the_end = [done for done, total in calls if done < total]
    assert len(before_the_end) > 20


def test_the_log_says_why_plain_torch_computes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny(tmp_path, "mixtral")
    caplog.set_level("INFO")
    load_runner(
        RunnerOptions(model=tmp_path, kv_tokens=64, page_size=8, max_slots=2),
        lambda done, total: None,
    )
    (record,) = [r for r in caplog.records if r.message == "plain torch computes this model"]
    assert record.reason in (
        "the model is a mixture of experts",
        "the native extension is not installed",
    )
