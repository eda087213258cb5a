"""Owns the field types that the model is made of: strings, quantities, counts, refused fields.

Does not own the fields themselves (``model``) nor rules across fields (``rules``).
Invariant: every string, list and map that a user may write has an upper bound, because the API
server refuses CEL rules over unbounded values.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

QUANTITY_PATTERN = (
    r"^([0-9]+|[0-9]+\.[0-9]+|\.[0-9]+)(([KMGTPE]i)|[numkMGTPE]|([eE][-+]?[0-9]{1,2}))?$"
)
PERCENT_PATTERN = r"^(100|[1-9]?[0-9])%$"
MAX_COUNT = 100

NOT_AVAILABLE_MARK = "not-available"


class StrictModel(BaseModel):
    """Base of every part of the spec: frozen, unknown fields refused, camelCase in YAML."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )


NO_QUANTITY = "no_quantity"
"""Type of the error of what cannot be one."""
_NO_COUNT = "no_count"


def _quantity_text(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise PydanticCustomError(NO_QUANTITY, "Is not a quantity")
    return value


def _checked_count(value: object) -> object:
    """One complaint, where a union of types would make one for each."""
    if isinstance(value, str):
        is_good = re.fullmatch(PERCENT_PATTERN, value) is not None
    else:
        is_good = type(value) is int and 0 <= value <= MAX_COUNT
    if not is_good:
        message = f"Is neither a number from 0 to {MAX_COUNT} nor a percentage such as 25%"
        raise PydanticCustomError(_NO_COUNT, message)
    return value


Quantity = Annotated[
    str,
    BeforeValidator(_quantity_text),
    Field(pattern=QUANTITY_PATTERN, max_length=24),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY_PATTERN,
            "minimum": 0,
            "maxLength": 24,
        }
    ),
]
"""A Kubernetes quantity such as 500m, 2 or 16Gi."""

CountOrPercent = Annotated[
    int | str,
    BeforeValidator(_checked_count),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": PERCENT_PATTERN,
            "minimum": 0,
            "maximum": MAX_COUNT,
            "maxLength": 4,
        }
    ),
]
"""A number of groups, or a percentage of ``replicas``."""

RESOURCE_PATTERN = (
    r"^(cpu|memory|ephemeral-storage|hugepages-[0-9A-Za-z.]+"
    r"|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)$"
)
_EXTENDED_RESOURCE_PATTERN = (
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
ExtendedResourceName = Annotated[str, Field(pattern=_EXTENDED_RESOURCE_PATTERN, max_length=128)]
"""A resource that a device plugin offers: domain/name."""
ResourceName = Annotated[str, Field(pattern=RESOURCE_PATTERN, max_length=128)]
"""What a container may ask for: a resource of Kubernetes itself, or domain/name."""
ObjectName = Annotated[
    str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", min_length=1, max_length=253)
]
ImageName = Annotated[str, Field(pattern=r"^[^\s]+$", min_length=1, max_length=512)]

GPU_CLASS_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

LABEL_PREFIX_PATTERN = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?"
LABEL_NAME_PATTERN = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LabelKey = Annotated[
    str, Field(pattern=f"^{LABEL_PREFIX_PATTERN}{LABEL_NAME_PATTERN}$", max_length=317)
]
LabelValue = Annotated[str, Field(pattern=f"^({LABEL_NAME_PATTERN})?$", max_length=63)]

SCRAPE_INTERVAL_PATTERN = "^([1-9]|[1-5][0-9]|60)s$"


def _check_interval(value: str) -> str:
    if re.match(SCRAPE_INTERVAL_PATTERN, value) is None:
        message = "seconds from 1s to 60s, such as 15s"
        raise ValueError(message)
    return value


ScrapeInterval = Annotated[
    str,
    AfterValidator(_check_interval),
    WithJsonSchema({"type": "string", "pattern": SCRAPE_INTERVAL_PATTERN, "maxLength": 3}),
]
"""Time between two scrapes; rates are taken over minutes, so it is at most one."""

NotAvailable = Annotated[
    dict[str, Any] | None,
    WithJsonSchema(
        {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            NOT_AVAILABLE_MARK: True,
        }
    ),
]
"""A field whose name is reserved: its presence is refused until the feature exists."""


def _without_empty_parts(value: dict[str, Any] | None) -> dict[str, Any] | None:
    return {name: part for name, part in (value or {}).items() if part != {}} or None


PodTemplate = Annotated[
    dict[str, Any] | None,
    AfterValidator(_without_empty_parts),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""A Kubernetes PodTemplateSpec as written; an empty one is none. What it may hold is judged where
pods are rendered; the whole schema would make the CRD many times as large."""
