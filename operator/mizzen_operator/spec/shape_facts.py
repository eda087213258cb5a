"""Owns a model's sizes as the Job that fetched it tells them (``mizzen fetch-weights``).

Does not own what follows from them (``planner/memory_formula``). What is not of this form, a later
release's or a damaged one, counts as not known.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
Layers = Annotated[int, Field(ge=1, le=4096)]
Word = Annotated[str, Field(max_length=128)]


class _Told(BaseModel):
    """Frozen, camelCase; what a later release adds is passed over."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="ignore", alias_generator=to_camel, validate_by_name=True
    )


class ExpertFacts(_Told):
    """Experts of a mixture; ``num_layers`` have them, the others are dense."""

    num_experts: Size
    num_chosen: Size
    intermediate_size: Size
    num_layers: Layers


class ShapeFacts(_Told):
    """Sizes of a decoder; ``fp8_scales`` (rows or blocks): matrices are stored as FP8."""

    architecture: Word
    file_format: Word
    context_length: Size
    num_layers: Layers
    hidden_size: Size
    intermediate_size: Size
    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    vocab_size: Size
    tie_embeddings: bool
    fp8_scales: Word | None = None
    has_fp8_kv: bool = False
    experts: ExpertFacts | None = None


def shape_facts_of(told: object) -> ShapeFacts | None:
    """The facts in parsed JSON; None for anything else."""
    try:
        return ShapeFacts.model_validate(told)
    except ValidationError:
        return None


def as_told(facts: ShapeFacts) -> dict[str, object]:
    """The facts as JSON, ``shape_facts_of`` reads it back."""
    return facts.model_dump(by_alias=True, mode="json", exclude_defaults=True)
