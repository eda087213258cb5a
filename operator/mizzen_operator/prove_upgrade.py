"""Owns ``mizzen prove-upgrade``: which pods this release would move, told from a dump, no cluster.

Does not own any decision: it renders each service of the dump as the reconciler would and compares
pod templates with those that live, which are what the release before made. Exit codes: 0 no pinned
pod moves, 1 one would, 2 the command line or the file cannot be read.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from mizzen_operator.cli import add_images, fail, one_line
from mizzen_operator.cluster.drift import applied_hash, drifted_fields
from mizzen_operator.errors import SpecError
from mizzen_operator.observed import Observed
from mizzen_operator.planner.groups import groups_of
from mizzen_operator.planner.history import former_groups, history_of
from mizzen_operator.render import labels
from mizzen_operator.render.names import stored_revision_name
from mizzen_operator.render.render import RenderContext, render
from mizzen_operator.snapshot import observed_of, resolve_live
from mizzen_operator.spec.model import KIND
from mizzen_operator.spec.resolve import Defaults, Resolved
from mizzen_operator.store import (
    SERVICE_KIND,
    WATCHED_KINDS,
    Manifest,
    StoredObject,
    stored_object,
)
from mizzen_operator.yaml_documents import documents

_KINDS = {(kind.api_version, kind.kind): kind for kind in WATCHED_KINDS}
DUMP = "kubectl get misvc,controllerrevisions,statefulsets,deployments -A -o yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What an upgrade does to one service."""

    name: str
    moves: tuple[str, ...] = ()
    """What would happen to its pods that would not happen without the upgrade."""
    note: str = ""
    """Why that is as it should be, if it is."""

    @property
    def is_sound(self) -> bool:
        """Whether nobody has to look at it before the upgrade."""
        return not self.moves or bool(self.note)

    def lines(self) -> list[str]:
        """For a person: one line, and one more for each move."""
        head = self.note or ("moves" if self.moves else "nothing moves")
        return [f"{self.name}: {head}", *(f"  {move}" for move in self.moves)]


def prove_upgrade_verb(argv: Sequence[str]) -> int:
    """Tell from a dump of a cluster which pods an upgrade to this release would move."""
    parser = argparse.ArgumentParser(
        prog="mizzen prove-upgrade",
        description=prove_upgrade_verb.__doc__,
        epilog=f"example: {DUMP} | mizzen prove-upgrade -f -; exit code 1: pinned pods would move",
    )
    parser.add_argument(
        *("-f", "--file"),
        metavar="FILE",
        required=True,
        help=f"what `{DUMP}` prints; - reads the input",
    )
    add_images(parser)
    options = parser.parse_args(argv)
    try:
        objects = list(_objects(item.body for item in documents(options.file)))
        services = [item for item in objects if item.kind == SERVICE_KIND]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        return fail(2, f"mizzen prove-upgrade: cannot read {options.file}: {one_line(error)}")
    except KeyError as error:
        return fail(
            2,
            f"mizzen prove-upgrade: {options.file} is no dump of live objects: one has no "
            f"{error.args[0]}; make one with {DUMP}",
        )
    except (TypeError, ValueError, AttributeError) as error:
        return fail(
            2,
            f"mizzen prove-upgrade: {options.file} is no dump of live objects ({one_line(error)}); "
            f"make one with {DUMP}",
        )
    if not services:
        return fail(2, f"mizzen prove-upgrade: {options.file} has no {KIND}")
    defaults = Defaults(frontend_image=options.frontend_image, worker_image=options.worker_image)
    proofs = [proof_of(service, objects, defaults) for service in services]
    for proof in proofs:
        sys.stdout.write("".join(f"{line}\n" for line in proof.lines()))
    return 0 if all(proof.is_sound for proof in proofs) else 1


def proof_of(service: StoredObject, objects: Iterable[StoredObject], defaults: Defaults) -> Proof:
    """What this release would do to the service's pods; pure."""
    name = f"{service.namespace}/{service.name}"
    own = [
        item
        for item in objects
        if item.kind != SERVICE_KIND and item.service_uid == service.service_uid
    ]
    observed = observed_of(service, own, claims=None, lacking={})
    try:
        resolved = resolve_live(service.manifest, observed, defaults)
    except SpecError as error:
        return _refused(name, service.manifest, error)
    if resolved.groups and not observed.stateful_sets and not _has_no_group(service.manifest):
        return Proof(name=name, moves=("no StatefulSet of it is in the dump: nothing is proven",))
    moves = tuple(_moves(resolved, observed, own))
    follows = bool(moves) and resolved.spec.update_policy == "Follow"
    note = "rolls to the new defaults, for spec.updatePolicy is Follow" if follows else ""
    return Proof(name=name, moves=moves, note=note)


def _has_no_group(manifest: Manifest) -> bool:
    """Whether the status says that there is none yet, as while weights are awaited."""
    groups = (manifest.get("status") or {}).get("groups")
    return groups is not None and not groups


def _moves(resolved: Resolved, observed: Observed, own: Iterable[StoredObject]) -> Iterator[str]:
    history = history_of(observed)
    groups = [group for group in groups_of(observed) if not group.is_leaving]
    # Else old groups, and tokenizers that wait, move in a roll-out that is under way anyhow.
    is_new = not history or history[0].child.name != stored_revision_name(resolved)
    if is_new:
        for group in groups:
            if group.revision != resolved.revision:
                yield (
                    f"StatefulSet {group.name} of revision {group.revision} is replaced: wanted is "
                    f"revision {resolved.revision}"
                )
    context = RenderContext(
        groups=tuple(group.index for group in groups if group.revision == resolved.revision),
        former=former_groups(resolved, history, groups),
        lives={group.name: group.life for group in groups},
    )
    live = {(item.kind.kind, item.name): item.manifest for item in own}
    for obj in render(resolved, context):
        key = (obj["kind"], obj["metadata"]["name"])
        if key[0] in ("StatefulSet", "Deployment") and key in live:
            fields = _changed_fields(obj, live[key])
            if fields and (is_new or _cohort(obj) == _cohort(live[key])):
                yield f"{key[0]} {key[1]} changes {', '.join(sorted(fields))}"


def _changed_fields(obj: Manifest, live: Manifest) -> frozenset[str]:
    """Fields of the pod template that would be written and are not so."""
    if applied_hash(obj) == applied_hash(live):
        return frozenset()
    wanted, found = (
        {"spec": {"template": manifest["spec"]["template"]}} for manifest in (obj, live)
    )
    return drifted_fields(wanted, found)


def _cohort(manifest: Manifest) -> str:
    return str((manifest["metadata"].get("labels") or {}).get(labels.COHORT, ""))


def _refused(name: str, manifest: Manifest, error: SpecError) -> Proof:
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    was_refused = any(
        item["type"] == "Accepted" and item["status"] == "False" for item in conditions
    )
    if was_refused:
        return Proof(name=name, note="is refused already, so nothing moves")
    return Proof(
        name=name, moves=tuple(f"is refused: {problem.sentence()}" for problem in error.problems)
    )


def _objects(bodies: Iterable[Mapping[str, Any]]) -> Iterator[StoredObject]:
    """Objects of the kinds that we watch, out of lists too."""
    for body in bodies:
        if str(body.get("kind", "")).endswith("List") or body.get("kind") == "List":
            yield from _objects(body["items"])
            continue
        kind = _KINDS.get((body.get("apiVersion", ""), body.get("kind", "")))
        if kind is not None:
            yield stored_object(kind, body)
