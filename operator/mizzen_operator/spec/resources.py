"""Owns what a container asks for: requests and limits.

Does not own defaults nor GPUs (``model``), nor rules between the two (``rules``).
"""

from typing import Annotated

from pydantic import Field

from mizzen_operator.spec.fields import Quantity, ResourceName, StrictModel


class Resources(StrictModel):
    """Resources of one container; GPUs are set by worker.gpu."""

    requests: Annotated[dict[ResourceName, Quantity], Field(max_length=16)] = Field(
        default_factory=dict
    )
    """What the scheduler reserves."""
    limits: Annotated[dict[ResourceName, Quantity], Field(max_length=16)] = Field(
        default_factory=dict
    )
    """What the container may use; the CPU limit also sets the engine's number of threads."""
