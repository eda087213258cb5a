"""Owns what a ``config.json`` says of FP8 weights and KV; reads none.

Served are Hugging Face's ``fp8`` (scales of 128 x 128 blocks, or of whole matrices), ``fbgemm_fp8``
(of rows) and ``compressed-tensors`` of 8-bit floats (of matrices, rows or 128 x 128 blocks).
Activations are not rounded as such a file asks: they stay in the type of computing.
"""

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.model_executor.weights.typed_values import TypedValues

_KEY = "quantization_config"
_BLOCK = [128, 128]
"""``GROUP`` of ``kernels/fp8_matrix.py``; whoever reads headers only must not load torch."""
_REMEDY = "use the unquantised model, its FP8 or its GGUF form"


def find_fp8(config: TypedValues) -> str | None:
    """How matrices are scaled: ``rows`` (or whole matrices) or ``blocks``; None where they are not.

    Raises ``ModelLoadError`` for other quantisations.
    """
    found = config.value(_KEY)
    if found is None:
        return None
    if not isinstance(found, dict):
        raise _unsupported(config, found)
    method = found.get("quant_method")
    if method == "fp8":
        return _of_blocks(config, found, found.get("weight_block_size"))
    if method == "fbgemm_fp8":
        return "rows"
    if method == "compressed-tensors":
        return _compressed(config, found)
    raise _unsupported(config, found)


def stores_fp8_kv(config: TypedValues) -> bool:
    """Whether keys and values are meant to be stored as FP8."""
    found = config.value(_KEY)
    scheme = found.get("kv_cache_scheme") if isinstance(found, dict) else None
    return isinstance(scheme, dict) and _is_fp8(scheme)


def _is_fp8(facts: dict[str, object]) -> bool:
    return facts.get("num_bits") == 8 and facts.get("type") == "float"


def _compressed(config: TypedValues, found: dict[str, object]) -> str:
    groups = found.get("config_groups")
    weights = [
        group.get("weights")
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict)
    ]
    if len(weights) != 1 or not isinstance(weights[0], dict):
        raise _unsupported(config, found)
    facts = weights[0]
    if not _is_fp8(facts) or facts.get("strategy") not in ("tensor", "channel", "block"):
        raise _unsupported(config, found)
    if facts["strategy"] == "block":
        return _of_blocks(config, found, facts.get("block_structure"))
    return "rows"


def _of_blocks(config: TypedValues, found: dict[str, object], size: object) -> str:
    if size is None:
        return "rows"
    if size != _BLOCK:
        raise _unsupported(config, found)
    return "blocks"


def _unsupported(config: TypedValues, found: object) -> ModelLoadError:
    return ModelLoadError(f"{config.place}{_KEY} {found!r} is not supported; {_REMEDY}")
