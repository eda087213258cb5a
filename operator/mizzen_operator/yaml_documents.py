"""Owns reading the YAML documents of a file that a person wrote or dumped; judges none of them."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document of a file, and where it stands for messages."""

    place: str
    body: dict[str, Any]


def documents(name: str) -> Iterator[Document]:
    """The YAML documents of a file (- for the input); raises OSError, Unicode or YAML errors."""
    text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    for number, body in enumerate(_loaded(text), start=1):
        if body is None:
            continue
        if not isinstance(body, dict):
            message = f"document {number} is not a map"
            raise yaml.YAMLError(message)
        try:
            json.dumps(body, default=str)
        except (TypeError, ValueError, RecursionError) as error:
            # YAML has maps with keys that are no text, and values that hold themselves.
            message = f"document {number} cannot be written as JSON: {error}"
            raise yaml.YAMLError(message) from error
        yield Document(place=f"{name}, document {number}", body=body)


def _loaded(text: str) -> Iterator[Any]:
    """The documents of a text; raises YAML errors alone."""
    try:
        yield from yaml.load_all(text, Loader=_OneOfEachKey)
    except RecursionError as error:
        message = "has too many maps and lists within each other"
        raise yaml.YAMLError(message) from error


class _OneOfEachKey(yaml.SafeLoader):
    """Refuses a key that a map has twice, of which YAML would take the last without a word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - as it is called
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for key in keys if keys.count(key) > 1 and key != "<<"), None)
        if twice is not None:
            line = node.start_mark.line + 1
            message = f"the map that begins in line {line} has the key {twice} twice"
            raise yaml.YAMLError(message)
        return super().construct_mapping(node, deep=deep)
