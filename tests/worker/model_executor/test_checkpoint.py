"""Opening and reading checkpoints: every form, and one clear sentence for what cannot be used."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.tiny_llama import (
    random_prompt,
    reference_greedy,
    save_tiny_llama,
)

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.model_executor.factory import RunnerOptions, load_runner
from mizzen_worker.model_executor.weights.checkpoint import open_checkpoint
from mizzen_worker.model_executor.weights.fingerprint import content_fingerprint
from mizzen_worker.model_executor.weights.gguf_source import gguf_name, rotary_row_order
from mizzen_worker.models.registry import require_known


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def generate(model: Path, prompt: list[int]) -> list[int]:
    options = RunnerOptions(model=model, kv_tokens=256, page_size=8, max_slots=2, num_threads=2)
    runner = load_runner(options, lambda done, total: None).runner
    return RunnerDriver(runner).generate(Driven(slot=1, prompt=prompt, sampling=greedy(6)))


def write_gguf(folder: Path, target: Path, **changes: object) -> None:
    """The tiny model of a folder as a GGUF: matrices in float16, query and key rows interleaved."""
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    writer = gguf.GGUFWriter(target, str(changes.get("architecture", "llama")))
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    for name, tensor in weights.items():
        if name == changes.get("without"):
            continue
        values = tensor.numpy()
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        for part, key in heads.items():
            if part in name:
                order = rotary_row_order(config[key], head_dim)
                interleaved = np.empty_like(values)
                interleaved[order] = values
                values = interleaved
        writer.add_tensor(
            gguf_name(name), values.astype(np.float16 if values.ndim == 2 else np.float32)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
    assert facts.bos_token_id == 1
    assert facts.weight_format == "gguf"
    assert not facts.tie_embeddings
    assert facts.fingerprint == content_fingerprint([target])


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
    assert "GGUF architecture 'mamba' is not supported; known are: llama" in fail(target)
    change_config(tmp_path, architectures=["T5Model"])
    assert "'T5Model' is not supported; known are: LlamaForCausalLM" in fail(tmp_path)
    with pytest.raises(ModelLoadError, match="known are"):
        require_known("")


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    target = tmp_path / "part.gguf"
    write_gguf(tmp_path, target, without="model.layers.1.mlp.up_proj.weight")
    assert f"{target}: tensor blk.1.ffn_up.weight is missing" in fail(target)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    assert "tensor model.norm.weight is in none of its safetensors files" in fail(tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"intermediate_size": 97}, "has shape (96, 64), config.json asks for (97, 64)"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"num_hidden_layers": "three"}, "num_hidden_layers is 'three', an integer from 1"),
        (
            {"rope_parameters": {"rope_type": "yarn"}, "rope_scaling": None},
            "rope type 'yarn' is not supported; known: default, linear, llama3",
        ),
        ({"quantization_config": {"bits": 4}}, "quantization_config {'bits': 4} is not supported"),
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
