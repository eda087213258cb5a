"""Owns the way from a Hugging Face folder's ``config.json`` to ``ModelFacts``; reads no weights.

What a key means, and what holds where it is absent, is as in transformers' configuration classes.
"""

from pathlib import Path

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.layers.rotary_config import Llama3Scaling, RotaryConfig
from mizzen_worker.model_executor.weights.expert_config import read_expert_shape
from mizzen_worker.model_executor.weights.fingerprint import content_fingerprint
from mizzen_worker.model_executor.weights.fp8_config import find_fp8, stores_fp8_kv
from mizzen_worker.model_executor.weights.shape_check import require_sound_shape
from mizzen_worker.model_executor.weights.typed_values import TypedValues
from mizzen_worker.model_executor.weights.weight_files import weight_files
from mizzen_worker.models.architecture import Architecture, WindowRule
from mizzen_worker.models.known_architectures import architecture_of
from mizzen_worker.models.model_facts import MAX_LAYERS, ModelFacts, ModelShape
from mizzen_worker.vocabulary.json_file import read_json_object

_SLIDING = "sliding_attention"
_LAYER_TYPES = (_SLIDING, "full_attention")


def _rope_parameters(config: TypedValues) -> TypedValues:
    """Rotary settings in the older (``rope_scaling``) or newer (``rope_parameters``) place."""
    merged: dict[str, object] = {
        key: config.value(key) for key in ("rope_theta", "partial_rotary_factor") if key in config
    }
    for key in ("rope_scaling", "rope_parameters"):
        found = config.value(key)
        if isinstance(found, dict):
            merged.update(found)
    for key, value in merged.items():
        if isinstance(value, dict):
            message = (
                f"{config.place}rope_parameters {key!r} holds settings of one kind of layer, which "
                "is not supported; use a model with one rotary embedding for all layers"
            )
            raise ModelLoadError(message)
    return TypedValues(f"{config.place}rotary ", merged)


def _rotary_config(config: TypedValues, head_dim: int, default_theta: float) -> RotaryConfig:
    parameters = _rope_parameters(config)
    kind = parameters.value("rope_type") or parameters.value("type") or "default"
    theta = parameters.number("rope_theta", default_theta)
    share = parameters.number("partial_rotary_factor", 1.0)
    if share != 1.0:
        message = (
            f"{config.place}partial_rotary_factor {share} is not supported; use a model that "
            "rotates whole heads"
        )
        raise ModelLoadError(message)
    if kind == "default":
        return RotaryConfig(head_dim=head_dim, theta=theta)
    if kind == "linear":
        factor = parameters.number("factor")
        return RotaryConfig(head_dim=head_dim, theta=theta, linear_factor=factor)
    if kind == "llama3":
        scaling = Llama3Scaling(
            factor=parameters.number("factor"),
            low_freq_factor=parameters.number("low_freq_factor"),
            high_freq_factor=parameters.number("high_freq_factor"),
            original_context_length=parameters.integer("original_max_position_embeddings"),
        )
        return RotaryConfig(head_dim=head_dim, theta=theta, llama3=scaling)
    message = (
        f"{config.place}rope type {kind!r} is not supported; known: default, linear, llama3; "
        "use a model with one of these, or remove the scaling and serve the original context"
    )
    raise ModelLoadError(message)


def _layer_types(config: TypedValues, num_layers: int) -> list[str]:
    """Kind of each layer's attention, where windows are in use."""
    found = config.value("layer_types")
    if found is None:
        first = config.integer("max_window_layers", 28, least=0)
        return [_SLIDING if layer >= first else "full_attention" for layer in range(num_layers)]
    if (
        not isinstance(found, list)
        or len(found) != num_layers
        or any(kind not in _LAYER_TYPES for kind in found)
    ):
        message = (
            f"{config.place}layer_types is {found!r}, {num_layers} words of "
            f"{' and '.join(_LAYER_TYPES)} are needed; use a model with these kinds of attention"
        )
        raise ModelLoadError(message)
    return [str(kind) for kind in found]


def _windows(
    config: TypedValues, architecture: Architecture, num_layers: int
) -> tuple[int | None, ...]:
    is_absent = "sliding_window" not in config
    stated = architecture.default_window if is_absent else config.value("sliding_window")
    rule = architecture.windows
    switched = (WindowRule.UPPER_LAYERS, WindowRule.EVERY_LAYER_IF_USED)
    is_off = rule in switched and not config.flag("use_sliding_window")
    if rule is WindowRule.NONE or is_off or stated is None:
        return (None,) * num_layers
    window = config.integer("sliding_window", architecture.default_window)
    if rule is not WindowRule.UPPER_LAYERS:
        return (window,) * num_layers
    kinds = _layer_types(config, num_layers)
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _token_ids(found: object) -> tuple[TokenId, ...]:
    items = found if isinstance(found, list) else [found]
    return tuple(TokenId(item) for item in items if isinstance(item, int))


def _eos_token_ids(folder: Path, config: TypedValues) -> tuple[TokenId, ...]:
    """Of ``generation_config.json`` (which chat models extend) before ``config.json``."""
    generation_path = folder / "generation_config.json"
    if generation_path.exists():
        found = _token_ids(read_json_object(generation_path).get("eos_token_id"))
        if found:
            return found
    return _token_ids(config.value("eos_token_id"))


def _require_supported(config: TypedValues) -> None:
    found = config.value("hidden_act")
    if found not in (None, "silu"):
        message = f"{config.place}hidden_act {found!r} is not supported; use a model with silu"
        raise ModelLoadError(message)


def _shape(config: TypedValues, architecture: Architecture) -> ModelShape:
    num_heads = config.integer("num_attention_heads")
    hidden_size = config.integer("hidden_size")
    default_head_dim = architecture.default_head_dim or hidden_size // num_heads
    shape = ModelShape(
        num_layers=config.integer("num_hidden_layers", most=MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads),
        head_dim=config.integer("head_dim", default_head_dim),
        vocab_size=config.integer("vocab_size"),
        experts=read_expert_shape(config, architecture.experts),
    )
    require_sound_shape(shape, config.place)
    return shape


def read_folder_facts(folder: Path, *, has_weights: bool) -> ModelFacts:
    """Everything known of the model; ``has_weights`` False is for dummy weights."""
    path = folder / "config.json"
    config = TypedValues(f"{path}: ", read_json_object(path))
    architectures = config.value("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else "unknown"
    architecture = architecture_of(name, path)
    _require_supported(config)
    shape = _shape(config, architecture)
    return ModelFacts(
        architecture=architecture.name,
        shape=shape,
        rotary=_rotary_config(config, shape.head_dim, architecture.default_theta),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        context_length=config.integer("max_position_embeddings"),
        tie_embeddings=config.flag("tie_word_embeddings"),
        has_attention_bias=config.flag("attention_bias"),
        has_mlp_bias=config.flag("mlp_bias"),
        windows=_windows(config, architecture, shape.num_layers),
        eos_token_ids=_eos_token_ids(folder, config),
        fp8_scales=find_fp8(config),
        has_fp8_kv=stores_fp8_kv(config),
        fingerprint=content_fingerprint([path, *(weight_files(folder) if has_weights else [])]),
    )
