"""Owns finding, in the pod template that a user wrote, what the API server complains about; pure.

The API server looks at the form of an object first, and then names a place in words alone, if at
all. Does not own fields of the spec outside of pod templates (``origin``).
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from mizzen_operator.render import labels
from mizzen_operator.render.pod_template import pod_template_of, without_pod_templates
from mizzen_operator.render.render import rendered_tokenizer, rendered_worker_group
from mizzen_operator.render.strategic_merge import key_of, written_at
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.wording import shown

_TEMPLATE_PREFIX = "spec.template."
_PLACES = (
    re.compile(r'(?:unknown|duplicate) field "([^"]+)"'),
    re.compile(r"Go struct field \w+\.(\S+) of type"),
    re.compile(r"(?:^|\s)\.(spec\.template\.\S+): "),
)
_FAULT_OF_FORM = re.compile(
    r"cannot be handled as|cannot unmarshal|failed to create typed patch object"
)
_CONTAINERS = (
    # Pod security: 'allowPrivilegeEscalation != false (container "x" must set …)'; ResourceQuota:
    # "must specify limits.memory for: x,y".
    re.compile(r'containers? ("[-a-z0-9]+"(?:, "[-a-z0-9]+")*)'),
    re.compile(r"must specify \S+ for: ([-a-z0-9,]+)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A field of the InferenceService, and what is there."""

    field: str
    value: str = ""
    """As text; empty if there is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """The pods of one role: what the user wrote for them, and what we rendered."""

    root: str
    base: Mapping[str, Any]
    """The pod template as if the user had written none."""
    written: Mapping[str, Any]
    whole: Mapping[str, Any]

    def place_of(self, path: str) -> Place | None:
        """Where the user wrote what is at a path of the pod, or of its owner."""
        below = path.removeprefix(_TEMPLATE_PREFIX)
        if "." not in below:
            return None
        found = written_at(self.base, self.written, self.whole, below)
        if found is None:
            return None
        return Place(field=f"{self.root}{found.path}", value=shown(found.value))

    def named_containers(self, said: str) -> list[Place]:
        """Containers of the user's that a sentence names."""
        texts = " ".join(text for pattern in _CONTAINERS for text in pattern.findall(said))
        return self.containers(frozenset(re.findall(r"[-a-z0-9]+", texts)))

    def containers(self, names: Container[str] | None = None) -> list[Place]:
        """Containers of the user's; only those of some names, if given."""
        ours = {key_of("containers", item) for item in self.base["spec"]["containers"]}
        return [
            Place(field=f"{self.root}.spec.{name}[{index}]", value=f"container {item['name']}")
            for name in ("containers", "initContainers")
            for index, item in enumerate(self.written.get("spec", {}).get(name, []))
            if (names is None or item["name"] in names) and key_of(name, item) not in ours
        ]


def origins_of(resolved: Resolved, role: str, whole: Mapping[str, Any]) -> Origins | None:
    """Of the rendered pod template of a role; None where the user wrote none."""
    written = pod_template_of(resolved, role)
    if written is None:
        return None
    plain = without_pod_templates(resolved)
    owner = (
        rendered_tokenizer(plain, plain.tokenizer)
        if role == labels.ROLE_TOKENIZER and plain.tokenizer is not None
        else rendered_worker_group(plain, 0)
    )
    return Origins(
        root=f"spec.{role}.podTemplate",
        base=owner["spec"]["template"],
        written=written,
        whole=whole,
    )


def paths_in_text(said: str) -> list[str]:
    """Places that a sentence about the form of an object names."""
    return [path for pattern in _PLACES for path in pattern.findall(said)]


def is_about_form(said: str) -> bool:
    """Whether a sentence says that an object could not even be read: ours have the right form."""
    return _FAULT_OF_FORM.search(said) is not None
