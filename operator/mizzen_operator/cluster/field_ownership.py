"""Owns reading and rewriting `managedFields`: who wrote a field, what is applied by us; pure.

Does not own when that is needed (`apply.py`, `undone_edits.py`). The API server counts what a POST
wrote as an update of its manager, which no later apply of the same manager takes back: a field that
is rendered no more, or a list entry whose key changes, would stay for ever.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mizzen_operator.cluster.drift import Path

APPLY = "Apply"
UPDATE = "Update"


def as_applied(
    entries: Sequence[Mapping[str, Any]], *, manager: str, with_others: bool = False
) -> list[dict[str, Any]] | None:
    """`managedFields` with our updates counted as applied; None if they are already.

    `with_others` counts what anybody else wrote as applied by us too, subresources apart, so that
    the next apply leaves nothing but what it says.
    """
    here = [item for item in entries if not item.get("subresource")]
    ours = [item for item in here if _is_by(item, manager, APPLY)]
    taken = [
        item for item in here if item not in ours and (with_others or _is_by(item, manager, UPDATE))
    ]
    if not taken:
        return None
    rest = [dict(item) for item in entries if item not in taken and item not in ours]
    sources = [*ours, *taken]
    merged = {
        **sources[-1],
        "manager": manager,
        "operation": APPLY,
        "fieldsV1": _union(item.get("fieldsV1") or {} for item in sources),
    }
    return [*rest, merged]


def managers_of(
    entries: Iterable[Mapping[str, Any]], path: Path, live: Mapping[str, Any]
) -> frozenset[str]:
    """Who wrote the field at a path of the live object, or a part of it.

    Nobody where it was removed: who does that is not kept.
    """
    return frozenset(
        str(item.get("manager", ""))
        for item in entries
        if _holds(item.get("fieldsV1") or {}, path, live)
    )


def _holds(tree: Mapping[str, Any], path: Path, live: Any) -> bool:
    if not path:
        return True
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        return _holds_below(tree, f"f:{step}", rest, live.get(step))
    item = live[step]
    return any(_holds_below(tree, key, rest, item) for key in tree if _is_key_of(key, step, item))


def _holds_below(tree: Mapping[str, Any], key: str, rest: Path, live: Any) -> bool:
    # What is whole to the API server, such as a list without keys, has nothing below.
    return key in tree and (not tree[key] or live is None or _holds(tree[key], rest, live))


def _is_key_of(key: str, index: int, item: Any) -> bool:
    """Whether a key of `managedFields` means this item of a list."""
    kind, _, text = key.partition(":")
    if kind == "k":
        return isinstance(item, dict) and json.loads(text).items() <= item.items()
    return (kind == "v" and json.loads(text) == item) or (kind == "i" and int(text) == index)


def _is_by(entry: Mapping[str, Any], manager: str, operation: str) -> bool:
    return (entry.get("manager"), entry.get("operation")) == (manager, operation)


def _union(trees: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for tree in trees:
        for key, below in tree.items():
            merged[key] = _union((merged.get(key, {}), below))
    return merged
