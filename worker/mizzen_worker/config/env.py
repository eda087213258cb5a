"""Owns reading the environment: the one place in this package; owns no defaults and no flags.

The operator writes these names into every pod (``contracts/operator_names.py``). On a single
machine none is set.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.contracts.operator_names import (
    ENV_COHORT,
    ENV_GROUP_EPOCH,
    ENV_GROUP_ID,
    ENV_INSTANCE_ID,
    ENV_LEADER_ADDRESS,
    ENV_NODE_COUNT,
    ENV_NODE_RANK,
    ENV_ROLE,
)

ENV_COMPILE_CACHE = "TRITON_CACHE_DIR"
"""Where Triton keeps what it compiled; the operator sets it too."""
ENV_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEnvironment:
    """Where in a fleet this process runs; empty strings where nobody said."""

    role: str
    node_count: int
    node_rank: int
    leader_address: str
    group_id: str
    group_epoch: str
    instance_id: str
    cohort: str
    visible_gpus: tuple[str, ...] | None
    """None: all that there are."""

    def log_fields(self) -> dict[str, str]:
        """Give what stands on each log line."""
        fields = {"role": self.role, "group": self.group_id, "cohort": self.cohort}
        return {name: value for name, value in fields.items() if value}


def process_environment() -> Mapping[str, str]:
    """Give the environment of this process, to hand to children or to read names from."""
    return dict(os.environ)


def default_compile_cache(environment: Mapping[str, str]) -> tuple[Path, str]:
    """Folder of compiled kernels where no flag names one, and why it is that one."""
    named = environment.get(ENV_COMPILE_CACHE, "")
    if named:
        return Path(named), f"{ENV_COMPILE_CACHE} names it"
    base = environment.get("XDG_CACHE_HOME", "")
    folder = Path(base) if base else Path.home() / ".cache"
    return folder / "mizzen" / "kernels", "in the user's cache folder"


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Names of the GPUs that this process may use; None where nobody restricts them."""
    named = environment.get(ENV_VISIBLE_GPUS)
    return None if named is None else tuple(name for name in named.split(",") if name)


def read_pod_environment(environment: Mapping[str, str]) -> PodEnvironment:
    """Read and check the names; raises ``ConfigError`` naming the variable."""
    node_count = _number(environment, ENV_NODE_COUNT, default=1, least=1)
    node_rank = _number(environment, ENV_NODE_RANK, default=0, least=0)
    if node_rank >= node_count:
        msg = (
            f"{ENV_NODE_RANK} is {node_rank} and {ENV_NODE_COUNT} is {node_count}; ranks count "
            "from 0, so lower the one or raise the other"
        )
        raise ConfigError(msg)
    if node_count > 1:
        msg = f"{ENV_NODE_COUNT} is {node_count}; groups of several nodes are not served yet, use 1"
        raise ConfigError(msg)
    return PodEnvironment(
        role=environment.get(ENV_ROLE, ""),
        node_count=node_count,
        node_rank=node_rank,
        leader_address=environment.get(ENV_LEADER_ADDRESS, ""),
        group_id=environment.get(ENV_GROUP_ID, ""),
        group_epoch=environment.get(ENV_GROUP_EPOCH, ""),
        instance_id=environment.get(ENV_INSTANCE_ID, ""),
        cohort=environment.get(ENV_COHORT, ""),
        visible_gpus=visible_gpus(environment),
    )


def _number(environment: Mapping[str, str], name: str, *, default: int, least: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < least:
        msg = f"{name} is {text!r}; it must be a whole number from {least} up"
        raise ConfigError(msg)
    return int(text)
