"""Owns the comparison of what we rendered with what lives: hash and drifted fields; pure.

Does not own what is done about a difference.
"""

from collections.abc import Iterator
from typing import Any

from mizzen_operator.render.labels import APPLIED_HASH
from mizzen_operator.spec.quantity import quantity_of
from mizzen_operator.store import Manifest

Path = tuple[str | int, ...]
"""Keys and indices that lead to a field."""

_QUANTITIES = frozenset({"requests", "limits"})
_QUANTITY_FIELD = "sizeLimit"
"""Where the API server writes a number its own way, such as 1 for 1000m."""


def applied_hash(manifest: Manifest) -> str:
    """The hash that a rendered or live object carries; empty if it carries none."""
    annotations = manifest["metadata"].get("annotations") or {}
    return str(annotations.get(APPLIED_HASH, ""))


def drifted_fields(wanted: Manifest, live: Manifest) -> frozenset[str]:
    """Rendered fields whose live value differs; fields we did not render are ignored."""
    return frozenset(map(path_text, drifted_paths(wanted, live)))


def drifted_paths(wanted: Manifest, live: Manifest) -> frozenset[Path]:
    """The same as paths, for those who look them up."""
    return frozenset(_differences(wanted, live, ()))


def path_text(path: Path) -> str:
    """As people write it: ``.spec.ports[0].port``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _differences(wanted: Any, live: Any, path: Path) -> Iterator[Path]:
    if wanted == live:
        return
    if isinstance(wanted, dict):
        if not isinstance(live, dict):
            # An empty map is not stored.
            if wanted:
                yield path
            return
        for key, value in wanted.items():
            yield from _differences(value, live.get(key), (*path, key))
    elif isinstance(wanted, list | tuple):
        items = live if isinstance(live, list | tuple) else ()
        if len(items) != len(wanted):
            yield path
            return
        for index, value in enumerate(wanted):
            yield from _differences(value, items[index], (*path, index))
    elif not _is_same_scalar(wanted, live, path):
        yield path


def _is_same_scalar(wanted: Any, live: Any, path: Path) -> bool:
    if isinstance(wanted, bool) or isinstance(live, bool) or wanted is None or live is None:
        # Zero values are dropped by the API server.
        return not wanted and not live
    if path[-1] != _QUANTITY_FIELD and not _QUANTITIES.intersection(path):
        return False
    first, second = quantity_of(str(wanted)), quantity_of(str(live))
    return first is not None and first == second
