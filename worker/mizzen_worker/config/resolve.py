"""Owns which source of an option wins, and remembers it; owns no table and no reading of files.

Order: flag, then configuration file, then default; where that is ``auto``, the device. Values of
the environment are not options: the operator's names are read in ``env.py``. Pure.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mizzen_worker.config.foreign_names import FOREIGN_TO_OWN
from mizzen_worker.config.groups import (
    AdminOptions,
    EngineOptions,
    HttpOptions,
    LogOptions,
    ModelOptions,
    RankOptions,
    WireOptions,
)
from mizzen_worker.config.option import Option, Role
from mizzen_worker.config.options import OPTIONS, options_of
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.contracts.operator_names import FLAG_DEVICE

_CPU, _CUDA = "cpu", "cuda"
_FLAG_GRAPHS = "--cuda-graphs"

GroupT = TypeVar(
    "GroupT",
    ModelOptions,
    HttpOptions,
    AdminOptions,
    WireOptions,
    EngineOptions,
    RankOptions,
    LogOptions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedValue:
    """One option's value and where it is from."""

    option: Option
    value: Any
    source: str
    reason: str = ""
    """Why ``auto`` came to this value, where the device decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Every option of one verb, resolved."""

    role: Role
    values: Mapping[str, ResolvedValue]

    def group(self, kind: type[GroupT]) -> GroupT:
        """Make one typed group; options that the verb does not take have their defaults."""
        fields = {
            option.field: self.values[option.flag].value
            if option.flag in self.values
            else _default_on(option, _CPU)
            for option in OPTIONS
            if option.group is kind
        }
        return kind(**fields)


def resolve(
    role: Role, *, flags: Mapping[str, str], file: Mapping[str, str], file_name: str
) -> Configuration:
    """Resolve every option; raises ``ConfigError`` with one sentence for the first wrong one."""
    taken = options_of(role)
    known = {option.key for option in taken}
    for key in file:
        if key not in known:
            msg = f"{file_name}: {key!r} is no option of {role.value}{did_you_mean(key, known)}"
            raise ConfigError(msg)
    values = {option.flag: _resolve(option, flags, file, file_name) for option in taken}
    device = values[FLAG_DEVICE].value.partition(":")[0] if FLAG_DEVICE in values else _CPU
    if _FLAG_GRAPHS in values and values[_FLAG_GRAPHS].value == "on" and device != _CUDA:
        msg = f"{_FLAG_GRAPHS}: 'on' needs a GPU; leave it to auto, or give --device cuda"
        raise ConfigError(msg)
    return Configuration(
        role=role, values={flag: _settled(value, device) for flag, value in values.items()}
    )


def did_you_mean(word: str, known: set[str] | frozenset[str]) -> str:
    """Give the end of a sentence that suggests what was meant."""
    name = word.lstrip("-")
    own = FOREIGN_TO_OWN.get(name)
    same = None if own is None else word.removesuffix(name) + own
    close = [same] if same in known else difflib.get_close_matches(word, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _resolve(
    option: Option, flags: Mapping[str, str], file: Mapping[str, str], file_name: str
) -> ResolvedValue:
    if option.flag in flags:
        return _parsed(option, flags[option.flag], "flag")
    if option.key in file:
        return _parsed(option, file[option.key], f"file {file_name}")
    if option.is_required:
        msg = f"{option.flag} is missing; give it: {option.help}"
        raise ConfigError(msg)
    return ResolvedValue(option=option, value=_default(option), source="default")


def _parsed(option: Option, text: str, source: str) -> ResolvedValue:
    try:
        value = option.parser(text)
    except ValueError as error:
        where = "" if source == "flag" else f" (in {source})"
        msg = f"{option.flag}: {text!r} cannot be used{where}; {error}"
        raise ConfigError(msg) from error
    return ResolvedValue(option=option, value=value, source=source)


def _default(option: Option) -> Any:
    return None if option.default is None else option.parser(option.default)


def _default_on(option: Option, device: str) -> Any:
    value = ResolvedValue(option=option, value=_default(option), source="default")
    return _settled(value, device).value


def _settled(resolved: ResolvedValue, device: str) -> ResolvedValue:
    """Let the kind of device decide what was left to it."""
    option = resolved.option
    if option.by_device is None or resolved.value is not None:
        return resolved
    if device != _CUDA:
        text, reason = option.by_device.cpu, f"{option.by_device.cpu} on a CPU"
    elif option.by_device.cuda is not None:
        text, reason = option.by_device.cuda, f"{option.by_device.cuda} on a GPU"
    else:
        return replace(resolved, reason="measured on the GPU at the start")
    return replace(resolved, value=option.parser(text), reason=reason)
