"""Owns the form of one option and the roles, the verbs that take it.

Owns no option (``options``, ``engine_options``). ``default`` is text, read by the same parser as a
flag's value; None means that the option may be absent. ``choices`` are for help and completion; the
parser decides.
"""

import enum
from dataclasses import dataclass
from typing import TypedDict, Unpack

from mizzen_worker.config import parse
from mizzen_worker.config.groups import OptionGroup
from mizzen_worker.config.parse import Parser


class Role(enum.Enum):
    """Which verbs take an option; the value is the verb."""

    SERVE = "serve"
    WORKER = "worker"
    TOKENIZER = "tokenizer"
    BENCH = "bench"


SERVING_ROLES = (Role.SERVE, Role.WORKER, Role.TOKENIZER)
ALL_ROLES = frozenset(SERVING_ROLES)
FRONTS = frozenset({Role.SERVE, Role.TOKENIZER})
ENGINES = frozenset({Role.SERVE, Role.WORKER, Role.BENCH})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDefaults:
    """What the word ``auto`` comes to on a kind of device, as text.

    ``cuda`` None stays None: known when the GPU's memory was measured.
    """

    cpu: str
    cuda: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. Its file key is the flag without dashes in front."""

    flag: str
    group: OptionGroup
    field: str
    parser: Parser
    default: str | None
    help: str
    roles: frozenset[Role] = ALL_ROLES
    metavar: str = "TEXT"
    choices: tuple[str, ...] = ()
    is_switch: bool = False
    is_required: bool = False
    by_device: DeviceDefaults | None = None
    """What ``auto`` comes to; the parser takes that word for None."""

    @property
    def key(self) -> str:
        """Name in a configuration file."""
        return self.flag.removeprefix("--")


class _Rest(TypedDict, total=False):
    """Fields of ``Option`` that have defaults; ``field`` is the flag's own name unless given."""

    field: str
    roles: frozenset[Role]
    metavar: str
    choices: tuple[str, ...]
    is_switch: bool
    is_required: bool
    by_device: DeviceDefaults


def option(
    flag: str,
    group: OptionGroup,
    parser: Parser,
    default: str | None,
    help_text: str,
    **rest: Unpack[_Rest],
) -> Option:
    """Make an option; its field is the flag's own name unless given."""
    rest.setdefault("field", flag.removeprefix("--").replace("-", "_"))
    return Option(flag=flag, group=group, parser=parser, default=default, help=help_text, **rest)


def choice(
    flag: str, group: OptionGroup, choices: tuple[str, ...], help_text: str, roles: frozenset[Role]
) -> Option:
    """Make an option of fixed words; the first is the default."""
    return option(
        flag, group, parse.one_of(*choices), choices[0], help_text,
        choices=choices, roles=roles, metavar="WORD",
    )  # fmt: skip
