"""Tiny checkpoints as GGUF files, with the names that the gguf package itself gives to tensors."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file

ARCHITECTURE_BY_MODEL_TYPE = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}


def interleaved(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of each head as pairs of the first and the second half, as converters write them."""
    halves = values.reshape(num_heads, 2, len(values) // num_heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def write_gguf(folder: Path, target: Path, **changes: object) -> None:
    """The tiny model of a folder as a GGUF: matrices in float16 or ``quantised``, vectors dense."""
    quantised = changes.get("quantised")
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURE_BY_MODEL_TYPE[config["model_type"]]
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    name_of = str(changes.get("architecture", gguf.MODEL_ARCH_NAMES[architecture]))
    writer = gguf.GGUFWriter(target, name_of)
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
    if config.get("head_dim") is not None:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config.get("sliding_window") is not None:
        writer.add_sliding_window(config["sliding_window"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name == changes.get("without"):
            continue
        values = tensor.numpy()
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name and architecture is gguf.MODEL_ARCH.LLAMA:
                values = interleaved(values, config[heads])
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if quantised is not None and values.ndim == 2:
            kind = gguf.GGMLQuantizationType[str(quantised)]
            writer.add_tensor(stored, gguf.quants.quantize(values, kind), raw_dtype=kind)
            continue
        writer.add_tensor(stored, values.astype(np.float16 if values.ndim == 2 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
