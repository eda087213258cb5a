"""Owns the rewriting of `managedFields`: which fields count as applied by us; pure.

Does not own when that is needed (`apply.py`). The API server counts what a POST wrote as an update
of its manager, which no later apply of the same manager takes back: a field that is rendered no
more, or a list entry whose key changes, would stay for ever.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mizzen_operator.store import Manifest

APPLY = "Apply"
UPDATE = "Update"


def as_applied(
    live: Manifest, *, manager: str, with_others: bool = False
) -> list[dict[str, Any]] | None:
    """`managedFields` with our updates counted as applied; None if they are already.

    `with_others` counts what anybody else wrote as applied by us too, subresources apart, so that
    the next apply leaves nothing but what it says.
    """
    entries = live["metadata"].get("managedFields") or ()
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


def _is_by(entry: Mapping[str, Any], manager: str, operation: str) -> bool:
    return (entry.get("manager"), entry.get("operation")) == (manager, operation)


def _union(trees: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for tree in trees:
        for key, below in tree.items():
            merged[key] = _union((merged.get(key, {}), below))
    return merged
