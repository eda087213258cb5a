"""Owns the conditions between a model's sizes, whatever file they are from; reads none."""

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.models.model_facts import ModelShape


def require_sound_shape(shape: ModelShape, place: str) -> None:
    """Raise ``ModelLoadError`` for sizes that fit no attention; ``place`` begins the complaint."""
    if shape.num_heads % shape.num_kv_heads:
        message = (
            f"{place}{shape.num_heads} query heads cannot share {shape.num_kv_heads} key heads "
            "evenly; download or convert the model again"
        )
        raise ModelLoadError(message)
    if shape.head_dim % 2:
        message = (
            f"{place}head size {shape.head_dim} is odd, so it cannot be rotated in pairs; "
            "download or convert the model again"
        )
        raise ModelLoadError(message)
