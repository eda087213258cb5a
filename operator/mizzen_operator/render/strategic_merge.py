"""Owns merging a pod template that a user wrote over a rendered one, and the way back; pure.

Maps are merged by key and scalars replaced. Of a list whose items have a key (containers by name)
items of equal key are merged and new ones added behind; of any other list new items are added, so
that nothing of ours is lost. Does not own what a user may write (``pod_template``). Invariants: an
empty template changes nothing, and merging a second time changes nothing more.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "hostAliases": ("ip",),
    "ports": ("containerPort", "protocol"),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
"""Fields of an item that set it apart, by the list's name: the merge keys of Kubernetes."""
_KEY_DEFAULTS = {"protocol": "TCP"}
_REPLACED = frozenset({"env"})
"""Lists whose items are replaced whole: a variable has a value or a source, never both."""
_STEP = re.compile(r'([^.\[\]]+)|\[(?:name=)?"?([^\]"]*)"?\]')

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A place in what a user wrote."""

    path: str
    """Below the template, with indices as the user counts."""
    value: Any
    """What is there; None if it is missing there."""


def key_of(list_name: str, item: Any) -> Key | None:
    """What sets an item of a list apart; None for an item, or a list, without a key."""
    fields = LIST_KEYS.get(list_name)
    if fields is None or not isinstance(item, Mapping):
        return None
    values = tuple(item.get(field, _KEY_DEFAULTS.get(field)) for field in fields)
    return None if any(isinstance(value, Mapping | list | None) for value in values) else values


def merged(base: Any, patch: Any, name: str = "") -> Any:
    """``patch`` over ``base``; ``name`` is the field that holds them. Neither is changed."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        both = {key: merged(base[key], patch[key], key) for key in base if key in patch}
        return {**base, **patch, **both}
    if isinstance(base, Sequence) and isinstance(patch, Sequence) and not isinstance(patch, str):
        return _merged_list(base, patch, name)
    return patch


def _merged_list(base: Sequence[Any], patch: Sequence[Any], name: str) -> list[Any]:
    found = list(base)
    at = {key_of(name, item): index for index, item in enumerate(base)}
    for item in patch:
        key = key_of(name, item)
        if key is None or key not in at:
            if item not in found:
                found.append(item)
        elif name in _REPLACED:
            found[at[key]] = item
        else:
            found[at[key]] = merged(found[at[key]], item)
    return found


def steps_of(path: str) -> tuple[str, ...]:
    """The steps of a path such as ``spec.containers[1].resources.limits[cpu]``."""
    return tuple(field or inside for field, inside in _STEP.findall(path))


def written_at(base: Any, patch: Any, whole: Any, path: str) -> Written | None:
    """Where the user wrote what is at a path of the merged ``whole``; None if we did.

    What is missing is the user's, if all that is around it is.
    """
    steps, told, name = steps_of(path), "", ""
    for number, step in enumerate(steps):
        if isinstance(whole, Sequence) and not isinstance(whole, str):
            item = _item(whole, name, step)
            place = _place(patch, name, item)
            if item is None or place is None:
                return None
            told = f"{told}[{place}]"
            base_place = _place(base, name, item)
            base = None if base_place is None else base[base_place]
            patch, whole = patch[place], item
            continue
        if not isinstance(patch, Mapping) or step not in patch:
            rest = "".join(f".{missing}" for missing in steps[number:])
            return Written(path=f"{told}{rest}", value=None) if base is None else None
        told, name = f"{told}.{step}", step
        patch, whole = patch[step], whole[step] if isinstance(whole, Mapping) else None
        base = base.get(step) if isinstance(base, Mapping) else None
    return Written(path=told, value=patch)


def _item(items: Sequence[Any], name: str, step: str) -> Any:
    """The item that an index or a key leads to; None if there is none."""
    if step.isascii() and step.isdigit():
        return items[int(step)] if int(step) < len(items) else None
    return next((item for item in items if key_of(name, item) == (step,)), None)


def _place(items: Any, name: str, item: Any) -> int | None:
    """The index, in another list, of the item that is merged into this one."""
    if not isinstance(items, Sequence) or isinstance(items, str):
        return None
    key = key_of(name, item)
    places = (
        index
        for index, other in enumerate(items)
        if (other == item if key is None else key_of(name, other) == key)
    )
    return next(places, None)
