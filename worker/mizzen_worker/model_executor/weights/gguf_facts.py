"""Owns the way from a GGUF file's metadata to ``ModelFacts``; reads no weight but rotary ones."""

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.layers.rotary_config import RotaryConfig
from mizzen_worker.model_executor.weights.fingerprint import content_fingerprint
from mizzen_worker.model_executor.weights.gguf_file import GgufFile
from mizzen_worker.model_executor.weights.shape_check import require_sound_shape
from mizzen_worker.models.architecture import Architecture, Bias
from mizzen_worker.models.known_architectures import gguf_architecture_of
from mizzen_worker.models.model_facts import MAX_LAYERS, ModelFacts, ModelShape

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


def _shape(file: GgufFile, prefix: str) -> ModelShape:
    metadata = file.metadata
    num_heads = metadata.integer(f"{prefix}.attention.head_count")
    hidden_size = metadata.integer(f"{prefix}.embedding_length")
    shape = ModelShape(
        num_layers=metadata.integer(f"{prefix}.block_count", most=MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=metadata.integer(f"{prefix}.feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=metadata.integer(f"{prefix}.attention.head_count_kv", num_heads),
        head_dim=metadata.integer(f"{prefix}.attention.key_length", hidden_size // num_heads),
        vocab_size=file.shape("token_embd.weight")[0],
    )
    require_sound_shape(shape, f"{file.path}: ")
    return shape


def _has_bias(file: GgufFile, bias: Bias, tensor: str) -> bool:
    return bias is Bias.CONFIGURED and file.has_tensor(tensor)


def architecture_in(file: GgufFile) -> Architecture:
    """The architecture that the file names; raises ``ModelLoadError`` for an unknown one."""
    return gguf_architecture_of(str(file.metadata.value("general.architecture")), file.path)


def read_gguf_facts(file: GgufFile) -> ModelFacts:
    """Everything known of the model; raises ``ModelLoadError`` for what we cannot run."""
    architecture = architecture_in(file)
    metadata, prefix = file.metadata, str(architecture.gguf_name)
    if metadata.integer(f"{prefix}.expert_count", 0, least=0) > 0:
        message = f"{file.path}: mixture-of-experts files are not supported; use a dense model"
        raise ModelLoadError(message)
    shape = _shape(file, prefix)
    return ModelFacts(
        architecture=architecture.name,
        shape=shape,
        rotary=_rotary_config(file, prefix, shape.head_dim),
        rms_norm_eps=metadata.number(f"{prefix}.attention.layer_norm_rms_epsilon", 1e-6),
        context_length=metadata.integer(f"{prefix}.context_length"),
        tie_embeddings=not file.has_tensor("output.weight"),
        has_attention_bias=_has_bias(file, architecture.qkv_bias, "blk.0.attn_q.bias"),
        has_mlp_bias=_has_bias(file, architecture.mlp_bias, "blk.0.ffn_gate.bias"),
        windows=_windows(file, prefix, shape.num_layers),
        eos_token_ids=_end_tokens(file),
        fingerprint=content_fingerprint([file.path]),
    )
