"""Opening and reading checkpoints: every form, and one clear sentence for what cannot be used."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.tiny_gguf import write_gguf
from tests.worker.model_executor.tiny_llama import (
    random_prompt,
    reference_greedy,
    save_tiny_llama,
)
from tests.worker.model_executor.tiny_models import VARIANTS, save_tiny

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.kernels.native_library import INSTRUCTION_SETS
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.runner_options import RunnerOptions
from mizzen_worker.model_executor.weights.checkpoint import open_checkpoint
from mizzen_worker.model_executor.weights.fingerprint import content_fingerprint
from mizzen_worker.models.known_architectures import architecture_of

WITH_EXPERTS = {"qwen3-moe", "qwen3-moe-window", "mixtral", "mixtral-window"}
WITHOUT_GGUF = {"llama3-biases", "qwen2-window"} | WITH_EXPERTS


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def generate(model: Path, prompt: list[int]) -> list[int]:
    options = RunnerOptions(model=model, kv_tokens=256, page_size=8, max_slots=2, num_threads=1)
    runner = load_runner(options, lambda done, total: None).runner
    return RunnerDriver(runner).generate(Driven(slot=1, prompt=prompt, sampling=greedy(6)))


def test_gguf_gives_the_tokens_of_the_same_safetensors_weights(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path)
    rounded = {name: w.half().float() for name, w in model.state_dict().items() if w.ndim == 2}
    model.load_state_dict(rounded, strict=False)
    target = tmp_path / "only" / "tiny.gguf"
    target.parent.mkdir()
    write_gguf(tmp_path, target)
    prompt = random_prompt(4, 19)
    expected = reference_greedy(model, prompt, 6)
    assert generate(target, prompt) == expected
    assert generate(target.parent, prompt) == expected
    facts = open_checkpoint(target).facts
    assert facts.eos_token_ids == (2,)
    assert not facts.tie_embeddings
    assert facts.fingerprint == content_fingerprint([target])


@pytest.mark.parametrize("variant", sorted(set(VARIANTS) - WITHOUT_GGUF))
def test_gguf_of_every_architecture(tmp_path: Path, variant: str) -> None:
    model = save_tiny(tmp_path, variant)
    rounded = {name: w.half().float() for name, w in model.state_dict().items() if w.ndim == 2}
    model.load_state_dict(rounded, strict=False)
    target = tmp_path / "tiny.gguf"
    write_gguf(tmp_path, target)
    prompt = random_prompt(4, 19)
    assert generate(target, prompt) == reference_greedy(model, prompt, 6)


def test_gguf_with_biases_everywhere(tmp_path: Path) -> None:
    model = save_tiny(tmp_path, "llama", attention_bias=True, mlp_bias=True)
    rounded = {name: w.half().float() for name, w in model.state_dict().items() if w.ndim == 2}
    model.load_state_dict(rounded, strict=False)
    target = tmp_path / "tiny.gguf"
    write_gguf(tmp_path, target)
    prompt = random_prompt(4, 19)
    assert generate(target, prompt) == reference_greedy(model, prompt, 6)


def test_float16_weights_are_read_without_rounding(tmp_path: Path) -> None:
    model = save_tiny(tmp_path, "qwen2").half()
    model.save_pretrained(tmp_path)
    prompt = random_prompt(6, 11)
    assert generate(tmp_path, prompt) == reference_greedy(model.float(), prompt, 6)


def test_windows_hold_for_the_layers_that_the_config_means(tmp_path: Path) -> None:
    def windows() -> tuple[int | None, ...]:
        return open_checkpoint(tmp_path).facts.windows

    save_tiny_llama(tmp_path)
    change_config(tmp_path, sliding_window=8)
    assert windows() == (None, None, None)
    change_config(tmp_path, architectures=["MistralForCausalLM"])
    assert windows() == (8, 8, 8)
    change_config(tmp_path, architectures=["Qwen2ForCausalLM"], max_window_layers=2)
    assert windows() == (None, None, None)
    change_config(tmp_path, use_sliding_window=True)
    assert windows() == (None, None, 8)
    change_config(tmp_path, layer_types=["sliding_attention", "full_attention", "full_attention"])
    assert windows() == (8, None, None)


def test_the_log_says_why_plain_torch_computes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny_llama(tmp_path, head_dim=24)
    caplog.set_level("INFO")
    generate(tmp_path, [3, 4, 5])
    (record,) = [r for r in caplog.records if r.message == "plain torch computes this model"]
    wanted = "head size 24 is not a multiple of 16"
    assert record.reason == (
        wanted if INSTRUCTION_SETS else "the native extension is not installed"
    )


def test_sharded_weights_are_as_good_as_one_file(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(weights)
    weight_map = {name: f"part-{index % 3}.safetensors" for index, name in enumerate(names)}
    for shard in set(weight_map.values()):
        part = {name: weights[name] for name in names if weight_map[name] == shard}
        save_file(part, tmp_path / shard)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    prompt = random_prompt(5, 11)
    assert generate(tmp_path, prompt) == reference_greedy(model, prompt, 6)


def test_bfloat16_weights_are_read_without_rounding(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path).bfloat16()
    model.save_pretrained(tmp_path)
    prompt = random_prompt(6, 11)
    assert generate(tmp_path, prompt) == reference_greedy(model.float(), prompt, 6)


def test_generation_config_extends_the_end_tokens(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 9]}')
    assert open_checkpoint(tmp_path).facts.eos_token_ids == (2, 9)


def test_fingerprint_follows_content_not_name(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"x" * 5000)
    second.write_bytes(b"x" * 5000)
    assert content_fingerprint([first]) == content_fingerprint([second])
    assert content_fingerprint([first]).startswith("sha256:")
    second.write_bytes(b"x" * 4999 + b"y")
    assert content_fingerprint([first]) != content_fingerprint([second])


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    calls: list[tuple[int, int]] = []
    options = RunnerOptions(model=tmp_path, kv_tokens=64, page_size=8, max_slots=2)
    load_runner(options, lambda done, total: calls.append((done, total)))
    dones = [done for done, _ in calls]
    assert dones[0] == 0
    assert dones == sorted(dones)
    assert len(set(dones)) > 20
    assert calls[-1][0] == calls[-1][1] == (tmp_path / "model.safetensors").stat().st_size


def fail(model: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load_runner(
            RunnerOptions(model=model, kv_tokens=64, page_size=8, max_slots=2),
            lambda done, total: None,
        )
    return str(caught.value)


def test_absent_model_names_what_is_needed(tmp_path: Path) -> None:
    assert "no such model; give a .gguf file or a folder" in fail(tmp_path / "nothing")
    assert "holds no config.json or a .gguf file" in fail(tmp_path)


def test_several_gguf_files_ask_for_a_choice(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    assert "several GGUF files (a.gguf, b.gguf); give the path of one" in fail(tmp_path)


def test_damaged_gguf_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    target = tmp_path / "whole.gguf"
    write_gguf(tmp_path, target)
    whole = target.read_bytes()
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"not this")
    assert f"{path}: is no GGUF file" in fail(path)
    for num_bytes in (10, 200, 1500):
        path.write_bytes(whole[:num_bytes])
        assert f"{path}: the file ends early; download it again" in fail(path)
    path.write_bytes(whole[:-1000])
    assert f"{path}: the file ends inside tensor " in fail(path)


def test_unknown_architectures_list_the_known_ones(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    target = tmp_path / "other.gguf"
    write_gguf(tmp_path, target, architecture="mamba")
    known = "known are: llama, qwen2, qwen3"
    assert fail(target) == f"{target}: GGUF architecture 'mamba' is not supported; {known}"
    change_config(tmp_path, architectures=["T5Model"])
    known = (
        "LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, Qwen2ForCausalLM, "
        "Qwen3ForCausalLM, Qwen3MoeForCausalLM"
    )
    place = f"{tmp_path / 'config.json'}: architecture"
    assert fail(tmp_path) == f"{place} 'T5Model' is not supported; known are: {known}"
    change_config(tmp_path, architectures=[])
    assert f"{place} 'unknown' is not supported" in fail(tmp_path)
    with pytest.raises(ModelLoadError, match="known are"):
        architecture_of("", tmp_path)


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    target = tmp_path / "part.gguf"
    write_gguf(tmp_path, target, without="model.layers.1.mlp.up_proj.weight")
    assert f"{target}: tensor blk.1.ffn_up.weight is missing" in fail(target)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    assert "tensor model.norm.weight is in none of its safetensors files" in fail(tmp_path)


def test_a_tensor_that_the_architecture_lacks_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    stray = "model.layers.2.self_attn.q_proj.bias"
    weights[stray] = torch.zeros(64)
    save_file(weights, tmp_path / "model.safetensors")
    named = f"{tmp_path / 'model.safetensors'}: tensor {stray} has no place in the architecture"
    assert named in fail(tmp_path)
    target = tmp_path / "stray.gguf"
    write_gguf(tmp_path, target)
    assert f"{target}: tensor blk.2.attn_q.bias has no place in the architecture" in fail(target)


def test_tensors_that_nobody_needs_are_let_lie(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path, tie_word_embeddings=True)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = torch.zeros(199, 64)
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(weights, tmp_path / "model.safetensors")
    prompt = random_prompt(5, 11)
    assert generate(tmp_path, prompt) == reference_greedy(model, prompt, 6)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"intermediate_size": 97}, "has shape (96, 64), config.json asks for (97, 64)"),
        ({"attention_bias": True}, "tensor model.layers.0.self_attn.q_proj.bias is in none"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes', true or false is needed"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; use a model with silu"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 key heads evenly"),
        ({"head_dim": 15}, "head size 15 is odd"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1, a number above 0 is needed"),
        ({"num_hidden_layers": "three"}, "num_hidden_layers is 'three', an integer from 1"),
        (
            {"rope_parameters": {"rope_type": "yarn"}, "rope_scaling": None},
            "rope type 'yarn' is not supported; known: default, linear, llama3; use a model with",
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "rope type 'dynamic' is not supported",
        ),
        ({"rope_parameters": {"rope_type": "linear"}}, "rotary factor is None, a number above 0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "x"}}, "rope_theta is 'x'"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters 'full_attention' holds settings of one kind of layer",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported; use"),
        (
            {"quantization_config": {"bits": 4}},
            "quantization_config {'bits': 4} is not supported; use the unquantised model",
        ),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 0},
            "sliding_window is 0, an integer from 1",
        ),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "use_sliding_window": True,
                "layer_types": ["chunked_attention"] * 3,
            },
            "layer_types is ['chunked_attention', 'chunked_attention', 'chunked_attention'], 3",
        ),
    ],
)
def test_what_the_config_asks_beyond_us_is_refused(
    tmp_path: Path, changes: dict[str, object], text: str
) -> None:
    save_tiny_llama(tmp_path)
    change_config(tmp_path, **changes)
    assert text in fail(tmp_path)


def test_index_may_not_point_outside_the_folder(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "points outside the folder" in fail(tmp_path)


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.int8)
    save_file(weights, tmp_path / "model.safetensors")
    assert "has type torch.int8; use unquantised weights" in fail(tmp_path)


@pytest.mark.parametrize(
    ("key", "gguf_key", "value"),
    [
        ("num_attention_heads", "llama.attention.head_count", 0),
        ("num_hidden_layers", "llama.block_count", 4_000_000_000),
        ("max_position_embeddings", "llama.context_length", 0),
    ],
)
def test_sizes_that_cannot_be_are_named_before_memory_is_taken(
    tmp_path: Path, key: str, gguf_key: str, value: int
) -> None:
    save_tiny_llama(tmp_path)
    whole = tmp_path / "whole.gguf"
    write_gguf(tmp_path, whole)
    content = bytearray(whole.read_bytes())
    at = content.index(gguf_key.encode()) + len(gguf_key) + 4
    content[at : at + 4] = value.to_bytes(4, "little")
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(content)
    with pytest.raises(ModelLoadError, match=f"metadata {gguf_key} is {value}, an integer from 1"):
        open_checkpoint(damaged)
    change_config(tmp_path, **{key: value})
    with pytest.raises(ModelLoadError, match=f"{key} is {value}, an integer from 1"):
        open_checkpoint(tmp_path)
