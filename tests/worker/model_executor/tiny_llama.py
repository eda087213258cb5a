"""Tiny random Llama models on disk, and transformers' answers for them."""

from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def save_tiny_llama(folder: Path, **changes: object) -> LlamaForCausalLM:
    """Write config.json and safetensors; returns the model in float32."""
    values: dict[str, object] = {
        "vocab_size": 199,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "initializer_range": 0.2,
    }
    values.update(changes)
    torch.manual_seed(11)
    model = LlamaForCausalLM(LlamaConfig(**values)).float().eval()
    model.save_pretrained(folder)
    return model


def reference_logits(model: LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    """[len(ids), vocab] float32."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].float()


def reference_greedy(model: LlamaForCausalLM, prompt: list[int], count: int) -> list[int]:
    """Greedy continuation, recomputed from scratch for every token."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(reference_logits(model, ids)[-1].argmax()))
    return ids[len(prompt) :]


def random_prompt(seed: int, length: int, vocab_size: int = 199) -> list[int]:
    return np.random.default_rng(seed).integers(3, vocab_size, length).tolist()
