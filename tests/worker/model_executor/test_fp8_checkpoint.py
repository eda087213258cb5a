"""FP8 checkpoints mean the numbers they hold, on every backend; what is no such form is said."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.scale import slow_case
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.test_gpu_model import DEVICE, runner_of
from tests.worker.model_executor.tiny_llama import random_prompt
from tests.worker.model_executor.tiny_models import EVERY_BACKEND, load_tiny, save_tiny

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.kernels.fp8_matrix import (
    FP8,
    GROUP,
    LARGEST,
    Fp8Matrix,
    quantise_blocks,
    quantise_rows,
)
from mizzen_worker.layers.gpu.weights import GpuWeightPreparer
from mizzen_worker.memory.device_pool import KvScale
from mizzen_worker.model_executor.memory_estimate import weights_bytes
from mizzen_worker.model_executor.valueless import VALUELESS, ValuelessSource
from mizzen_worker.model_executor.weights.checkpoint import open_checkpoint

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
WEIGHTS = {"num_bits": 8, "type": "float"}
FORMS: dict[str, dict[str, object]] = {
    "blocks": {"quant_method": "fp8", "weight_block_size": [GROUP, GROUP]},
    "matrices": {"quant_method": "fp8", "activation_scheme": "static"},
    "rows": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {**WEIGHTS, "strategy": "channel"}}},
    },
}


def packed_matrix(form: str, weight: torch.Tensor) -> tuple[torch.Tensor, str, torch.Tensor]:
    """Values, and the ending of the name of their scale, and that."""
    if form == "blocks":
        values, scale = quantise_blocks(weight)
        return values, "_scale_inv", scale[:, ::GROUP].t().contiguous()
    if form == "rows":
        values, scale = quantise_rows(weight)
        return values, "_scale", scale.t().contiguous().to(torch.bfloat16)
    scale = weight.abs().max() / LARGEST
    return (weight / scale).to(FP8), "_scale", scale


def save_packed(folder: Path, form: str, variant: str = "llama") -> Path:
    """A tiny model of FP8 matrices, and in the folder ``dense`` the same numbers as float32."""
    dense = folder / "dense"
    dense.mkdir()
    save_tiny(dense, variant, **SIZES)
    tensors, exact = load_file(dense / "model.safetensors"), {}
    for name, weight in sorted(tensors.items()):
        if not name.endswith("_proj.weight"):
            continue
        values, ending, scale = packed_matrix(form, weight)
        tensors |= {name: values, name + ending: scale}
        factors = scale.float()
        if form == "blocks":
            factors = factors.repeat_interleave(GROUP, 0)[: len(weight)]
            factors = factors.repeat_interleave(GROUP, 1)
        exact[name] = values.float() * factors
        if form == "matrices":
            tensors[name.replace(".weight", ".input_scale")] = torch.ones(())
    config = json.loads((dense / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": FORMS[form]}))
    save_file(tensors, folder / "model.safetensors")
    kept = {name: weight for name, weight in tensors.items() if "scale" not in name}
    save_file(kept | exact, dense / "model.safetensors")
    return dense


def tokens_of(runner: object) -> list[int]:
    driven = Driven(slot=1, prompt=random_prompt(4, 19), sampling=greedy(6))
    return RunnerDriver(runner).generate(driven)  # type: ignore[arg-type]


@EVERY_BACKEND
@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_those_of_the_same_numbers(tmp_path: Path, form: str, backend: str) -> None:
    dense = save_packed(tmp_path, form)
    expected = tokens_of(load_tiny(dense, backend))
    assert tokens_of(load_tiny(tmp_path, backend)) == expected
    assert len(set(expected)) > 1


@pytest.mark.parametrize("form", ["blocks", slow_case("rows")])
@pytest.mark.parametrize("variant", ["llama", slow_case("qwen3")])
def test_the_gpu_kernels_multiply_with_them(tmp_path: Path, form: str, variant: str) -> None:
    """Their norms are not in their columns: nothing is rounded a second time."""
    dense = save_packed(tmp_path, form, variant)
    expected = tokens_of(load_tiny(dense, "torch"))
    runner = runner_of(tmp_path, 16, is_captured=False)
    layer = runner._forward._model._layers[0]  # type: ignore[attr-defined]
    for weight in (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down):
        assert weight.values.dtype == FP8
    assert layer.qkv.input_norm is not None
    assert tokens_of(runner) == expected


def test_gpus_that_do_not_convert_fp8_get_dense_ones() -> None:
    prepare = GpuWeightPreparer(torch.float32, DEVICE, keeps_fp8=False)
    values, scale = quantise_rows(torch.randn(4, 16))
    part = Fp8Matrix(values=values, scale=scale)
    weight = prepare.linear([part, part])
    assert weight.scale is None
    expected = part.dequantise(torch.float32).to(DEVICE)
    assert torch.equal(weight.values, torch.cat([expected, expected]))


def test_sizes_are_those_of_fp8(tmp_path: Path) -> None:
    dense = save_packed(tmp_path, "blocks")
    packed, exact = (open_checkpoint(folder).facts for folder in (tmp_path, dense))
    assert (packed.fp8_scales, exact.fp8_scales) == ("blocks", None)
    assert open_checkpoint(tmp_path, is_dummy=True).facts.fp8_scales is None
    assert weights_bytes(packed, 2, is_packed=False) == weights_bytes(exact, 2, is_packed=True)
    matrix = ValuelessSource("blocks").matrix("model.layers.0.mlp.up_proj.weight", 256, 128)
    assert isinstance(matrix, Fp8Matrix)
    assert matrix.values.device == VALUELESS
    assert matrix.scale.shape == (1, 256)


def test_a_matrix_without_a_scale_that_fits_is_refused(tmp_path: Path) -> None:
    save_packed(tmp_path, "rows")
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    name = "model.layers.1.mlp.up_proj.weight"
    without = {key: value for key, value in whole.items() if key != name + "_scale"}
    for tensors, sentence in (
        (without, rf"tensor {name} is FP8 and has no .weight_scale_inv or .weight_scale"),
        (whole | {name + "_scale": torch.ones(3)}, r"of shape \(3,\) scales no rows or blocks"),
    ):
        save_file(tensors, path)
        with pytest.raises(ModelLoadError, match=sentence):
            load_tiny(tmp_path, "torch")


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "awq"},
        {"quant_method": "fp8", "weight_block_size": [64, 64]},
        {"quant_method": "compressed-tensors"},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
        },
    ],
)
def test_other_quantisations_are_refused(tmp_path: Path, config: dict[str, object]) -> None:
    save_tiny(tmp_path, "llama")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}))
    with pytest.raises(ModelLoadError, match=r"quantization_config .* is not supported; use the"):
        open_checkpoint(tmp_path)


def test_scales_of_keys_and_values(tmp_path: Path) -> None:
    save_packed(tmp_path, "rows")
    assert open_checkpoint(tmp_path).read_kv_scales() == ()
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    scales = {
        "model.layers.0.self_attn.k_scale": torch.tensor([0.5]),
        "model.layers.0.self_attn.v_scale": torch.tensor(0.25, dtype=torch.bfloat16),
        "model.layers.1.self_attn.v_scale": torch.tensor(2.0),
    }
    weights = load_file(path)
    save_file(weights | scales, path)
    values = json.loads(config.read_text())
    values["quantization_config"]["kv_cache_scheme"] = WEIGHTS | {"strategy": "tensor"}
    config.write_text(json.dumps(values))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.facts.has_fp8_kv
    expected = (KvScale(key=0.5, value=0.25), KvScale(key=1.0, value=2.0))
    assert checkpoint.read_kv_scales() == expected
    assert len(tokens_of(load_tiny(tmp_path, "torch"))) == 6
    save_file(weights | {"model.layers.0.self_attn.k_scale": torch.zeros(1)}, path)
    with pytest.raises(ModelLoadError, match="k_scale is not one number above 0"):
        checkpoint.read_kv_scales()
