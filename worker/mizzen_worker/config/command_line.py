"""Owns argument vectors and configuration files → resolved options; owns no table.

Flags, help and the file's keys come from ``options.py``; a wrong flag is answered with one sentence
and the one that was probably meant.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from mizzen_worker.config.option import Option, Role
from mizzen_worker.config.options import options_of
from mizzen_worker.config.resolve import Configuration, did_you_mean, resolve
from mizzen_worker.contracts.errors import ConfigError

_FLAG_CONFIG = "--config"
_GROUP_TITLES = {
    "ModelOptions": "model",
    "HttpOptions": "public HTTP port",
    "AdminOptions": "admin port and shutdown",
    "WireOptions": "between tokenizers and workers",
    "EngineOptions": "engine",
    "RankOptions": "ranks of a tensor-parallel group",
    "LogOptions": "log",
}


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        msg = f"{message}; see {self.prog} --help"
        raise ConfigError(msg)


def make_parser(role: Role, *, description: str, example: str) -> argparse.ArgumentParser:
    """Make the parser of a verb; values stay texts."""
    parser = _Parser(
        prog=f"mizzen {role.value}",
        description=description,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if role is Role.SERVE:
        parser.add_argument("MODEL", nargs="?", help="same as --model")
    parser.add_argument(
        _FLAG_CONFIG,
        metavar="FILE",
        help="YAML file of options, keys as the flags without dashes in front; flags win",
    )
    groups: dict[str, Any] = {}
    for option in options_of(role):
        title = _GROUP_TITLES[option.group.__name__]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add(groups[title], option)
    return parser


def parse_command_line(
    parser: argparse.ArgumentParser, role: Role, arguments: Sequence[str]
) -> Configuration:
    """Parse, read the file that is named, resolve; raises ``ConfigError``."""
    parsed, unknown = parser.parse_known_args(arguments)
    found = vars(parsed)
    known = frozenset({option.flag for option in options_of(role)} | {_FLAG_CONFIG})
    if unknown:
        word = unknown[0].partition("=")[0]
        if role is Role.SERVE and not word.startswith("-"):
            msg = f"one MODEL only: {unknown[0]!r} is too many"
            raise ConfigError(msg)
        msg = f"{word} is no flag of mizzen {role.value}{did_you_mean(word, known)}"
        raise ConfigError(msg)
    flags = {
        option.flag: found[option.field]
        for option in options_of(role)
        if found.get(option.field) is not None
    }
    model = found.get("MODEL")
    if model is not None:
        if "--model" in flags:
            msg = "the model is given twice; drop --model or the argument"
            raise ConfigError(msg)
        flags["--model"] = model
    file_name = found["config"]
    file = read_file(Path(file_name)) if file_name is not None else {}
    return resolve(role, flags=flags, file=file, file_name=file_name or "")


def read_file(path: Path) -> Mapping[str, str]:
    """Read a YAML file of options as texts; raises ``ConfigError``."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        msg = f"{_FLAG_CONFIG}: {path} cannot be read: {error}"
        raise ConfigError(msg) from error
    if not isinstance(content, dict):
        msg = f"{_FLAG_CONFIG}: {path} holds no options; write lines of KEY: VALUE"
        raise ConfigError(msg)
    return {str(key): _as_text(str(key), value) for key, value in content.items()}


def _as_text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(str(part) for part in value)
    if isinstance(value, (str, int, float)):
        return str(value)
    msg = f"{_FLAG_CONFIG}: {key} is {value!r}; give a text, a number or a list"
    raise ConfigError(msg)


def _add(group: Any, option: Option) -> None:
    suffix = "" if option.default is None or option.is_switch else f" (default {option.default})"
    text = (option.help + suffix).replace("%", "%%")
    if option.is_switch:
        group.add_argument(
            option.flag, dest=option.field, action="store_const", const="true", help=text
        )
        return
    metavar = "|".join(option.choices) if option.choices else option.metavar
    group.add_argument(option.flag, dest=option.field, metavar=metavar, help=text)
