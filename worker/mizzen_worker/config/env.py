"""Owns reading the environment: the one place in this package; owns no defaults and no flags.

The operator writes these names into every pod (``contracts/operator_names.py``). On a single
machine none is set.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
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
ENV_NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
"""Over which network interface NCCL's ranks meet."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchEnvironment:
    """Where weights are fetched from, and with which credentials; empty where nobody said.

    Credentials are never shown. ``proxies`` are the usual variables, as the standard library takes
    them: URL by scheme, and hosts that need none under ``no``.
    """

    hf_endpoint: str
    s3_endpoint: str
    s3_region: str
    hf_token: str = field(repr=False)
    s3_access_key_id: str = field(repr=False)
    s3_secret_access_key: str = field(repr=False)
    s3_session_token: str = field(repr=False)
    oci_username: str = field(repr=False)
    oci_password: str = field(repr=False)
    proxies: Mapping[str, str] = field(repr=False)

    def secrets(self) -> tuple[str, ...]:
        """Give what no line may show."""
        found = (
            *(self.hf_token, self.s3_secret_access_key, self.s3_session_token),
            *(self.s3_access_key_id, self.oci_password),
        )
        return tuple(secret for secret in found if secret)


def read_fetch_environment(environment: Mapping[str, str]) -> FetchEnvironment:
    """Read the names that other tools for these sources use too."""

    def take(name: str) -> str:
        # A Secret that was made from a file often ends with a line break.
        return environment.get(name, "").strip()

    return FetchEnvironment(
        hf_endpoint=take("HF_ENDPOINT") or "https://huggingface.co",
        s3_endpoint=take("AWS_ENDPOINT_URL"),
        s3_region=take("AWS_REGION") or "us-east-1",
        hf_token=take("HF_TOKEN"),
        s3_access_key_id=take("AWS_ACCESS_KEY_ID"),
        s3_secret_access_key=take("AWS_SECRET_ACCESS_KEY"),
        s3_session_token=take("AWS_SESSION_TOKEN"),
        oci_username=take("OCI_USERNAME"),
        oci_password=take("OCI_PASSWORD"),
        proxies=_proxies(environment),
    )


def _proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Lower-case names win, as everywhere."""
    suffix = "_proxy"
    found = sorted(name for name in environment if name.lower().endswith(suffix))
    return {
        name.lower().removesuffix(suffix): environment[name] for name in found if environment[name]
    }


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
    for name in (ENV_LEADER_ADDRESS, ENV_GROUP_ID, ENV_GROUP_EPOCH):
        if node_count > 1 and not environment.get(name):
            msg = f"{ENV_NODE_COUNT} is {node_count} and {name} is empty; a group needs it"
            raise ConfigError(msg)
    leader_address = environment.get(ENV_LEADER_ADDRESS, "")
    if not _is_host(leader_address):
        msg = (
            f"{ENV_LEADER_ADDRESS} is {leader_address!r}; it must be a host's name or IP address"
            " alone, without a port"
        )
        raise ConfigError(msg)
    return PodEnvironment(
        role=environment.get(ENV_ROLE, ""),
        node_count=node_count,
        node_rank=node_rank,
        leader_address=leader_address,
        group_id=environment.get(ENV_GROUP_ID, ""),
        group_epoch=environment.get(ENV_GROUP_EPOCH, ""),
        instance_id=environment.get(ENV_INSTANCE_ID, ""),
        cohort=environment.get(ENV_COHORT, ""),
        visible_gpus=visible_gpus(environment),
    )


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return not set(text) & set(" :/[]")
    return True


def _number(environment: Mapping[str, str], name: str, *, default: int, least: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < least:
        msg = f"{name} is {text!r}; it must be a whole number from {least} up"
        raise ConfigError(msg)
    return int(text)
