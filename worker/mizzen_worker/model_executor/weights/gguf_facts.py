"""Owns the way from a GGUF file's metadata to ``ModelFacts``; reads no weight but rotary ones."""

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.layers.rotary_config import RotaryConfig
from mizzen_worker.model_executor.weights.fingerprint import content_fingerprint
from mizzen_worker.model_executor.weights.gguf_file import GgufFile
from mizzen_worker.model_executor.weights.gguf_shape import (
    architecture_in,
    context_length,
    read_gguf_shape,
    ties_embeddings,
)
from mizzen_worker.models.architecture import Bias
from mizzen_worker.models.model_facts import ModelFacts

ROTARY_FACTORS = "rope_freqs.weight"


def _rotary_config(file: GgufFile, prefix: str, head_dim: int) -> RotaryConfig:
    """Rotary configuration, or ``ModelLoadError`` where the file asks for more than we do."""
    metadata = file.metadata
    rotated = metadata.integer(f"{prefix}.rope.dimension_count", head_dim)
    scaling = metadata.value(f"{prefix}.rope.scaling.type")
    scaling = None if scaling == "none" else scaling
    if rotated != head_dim or scaling not in (None, "linear"):
        message = (
            f"{file.path}: rotary embedding over {rotated} of {head_dim} dimensions with scaling "
            f"{scaling!r} is not supported; use a model with full rotary and no or linear scaling"
        )
        raise ModelLoadError(message)
    divisors: tuple[float, ...] | None = None
    if file.has_tensor(ROTARY_FACTORS):
        divisors = tuple(float(x) for x in file.vector(ROTARY_FACTORS))
        if len(divisors) != head_dim // 2:
            message = (
                f"{file.path}: tensor {ROTARY_FACTORS} has {len(divisors)} values, half the head "
                f"size ({head_dim // 2}) is needed; convert the file again"
            )
            raise ModelLoadError(message)
    return RotaryConfig(
        head_dim=head_dim,
        theta=metadata.number(f"{prefix}.rope.freq_base", 10000.0),
        linear_factor=metadata.number(f"{prefix}.rope.scaling.factor", 1.0) if scaling else 1.0,
        frequency_divisors=divisors,
    )


def _windows(file: GgufFile, prefix: str, num_layers: int) -> tuple[int | None, ...]:
    window = file.metadata.integer(f"{prefix}.attention.sliding_window", 0, least=0)
    pattern = f"{prefix}.attention.sliding_window_pattern"
    if window > 0 and pattern in file.metadata:
        message = (
            f"{file.path}: metadata {pattern} is not supported; use the model's safetensors form"
        )
        raise ModelLoadError(message)
    return (window or None,) * num_layers


def _end_tokens(file: GgufFile) -> tuple[TokenId, ...]:
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    found = [file.metadata.value(key) for key in keys]
    return tuple(dict.fromkeys(TokenId(token) for token in found if isinstance(token, int)))


def _has_bias(file: GgufFile, bias: Bias, tensor: str) -> bool:
    return bias is Bias.CONFIGURED and file.has_tensor(tensor)


def read_gguf_facts(file: GgufFile) -> ModelFacts:
    """Everything known of the model; raises ``ModelLoadError`` for what we cannot run."""
    architecture = architecture_in(file)
    metadata, prefix = file.metadata, str(architecture.gguf_name)
    shape = read_gguf_shape(file, architecture)
    return ModelFacts(
        architecture=architecture.name,
        shape=shape,
        rotary=_rotary_config(file, prefix, shape.head_dim),
        rms_norm_eps=metadata.number(f"{prefix}.attention.layer_norm_rms_epsilon", 1e-6),
        context_length=context_length(file, architecture),
        tie_embeddings=ties_embeddings(file),
        has_attention_bias=_has_bias(file, architecture.qkv_bias, "blk.0.attn_q.bias"),
        has_mlp_bias=_has_bias(file, architecture.mlp_bias, "blk.0.ffn_gate.bias"),
        windows=_windows(file, prefix, shape.num_layers),
        eos_token_ids=_end_tokens(file),
        fingerprint=content_fingerprint([file.path]),
    )
