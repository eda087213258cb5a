"""Owns what a ``config.json`` says of experts; reads no weights.

What a key means, and what holds where it is absent, is as in transformers' configuration classes.
"""

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.model_executor.weights.typed_values import TypedValues
from mizzen_worker.models.expert_names import ExpertNames
from mizzen_worker.models.model_facts import MAX_LAYERS, ExpertShape

MAX_EXPERTS = 4096


def read_expert_shape(config: TypedValues, names: ExpertNames | None) -> ExpertShape | None:
    """None where no layer has experts; raises ``ModelLoadError``."""
    if names is None:
        return None
    count_key = next((key for key in names.count_keys if key in config), names.count_keys[0])
    num_experts = config.integer(count_key, names.default_count, least=0, most=MAX_EXPERTS)
    layers = _layers(config)
    if num_experts == 0 or not layers:
        return None
    num_chosen = config.integer("num_experts_per_tok", names.default_chosen)
    if num_chosen > num_experts:
        message = (
            f"{config.place}num_experts_per_tok {num_chosen} is more than {count_key} "
            f"{num_experts}; download or convert the model again"
        )
        raise ModelLoadError(message)
    is_configured = config.flag("norm_topk_prob")
    return ExpertShape(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=config.integer(names.size_key, names.default_size),
        is_normalised=is_configured if names.is_normalised is None else names.is_normalised,
        layers=layers,
    )


def _layers(config: TypedValues) -> frozenset[int]:
    """Layers with experts: every ``decoder_sparse_step``-th but those of ``mlp_only_layers``."""
    num_layers = config.integer("num_hidden_layers", most=MAX_LAYERS)
    step = config.integer("decoder_sparse_step", 1)
    dense = config.value("mlp_only_layers")
    if dense is None:
        dense = []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        message = (
            f"{config.place}mlp_only_layers is {dense!r}, a list of layers is needed; "
            "download or convert the model again"
        )
        raise ModelLoadError(message)
    return frozenset(range(step - 1, num_layers, step)) - frozenset(dense)
