"""Owns the definition of a sound tree: recomputes everything a ``UnifiedTreeCore`` keeps count of.

Changes nothing. An empty list means sound; otherwise every violation found is named.
"""

from collections import Counter
from collections.abc import Iterator

from mizzen_worker.cache.node import NodeView
from mizzen_worker.cache.node_table import ROOT
from mizzen_worker.cache.page_key import DIGEST_BYTES, TOKEN_BYTES, hash_pages
from mizzen_worker.cache.tree_core import UnifiedTreeCore
from mizzen_worker.contracts.ids import NodeId


def check(core: UnifiedTreeCore) -> list[str]:
    """List every broken invariant of the tree. O(tree).

    T1: links, edges. T2, T3, T4, T9: values. T5: locks. T6, T7: candidates. T8: counts.
    """
    views = {view.node_id: view for view in core.views()}
    return [
        *_broken_links(views),
        *_broken_edges(core, views),
        *_broken_values(core, views),
        *_broken_locks(core, views),
        *_broken_counts(core, views),
        *_broken_candidates(core, views),
        *_broken_names(core, views),
    ]


def _broken_links(views: dict[NodeId, NodeView]) -> Iterator[str]:
    reachable = {ROOT}
    for view in views.values():
        for child_id, child_key in zip(view.child_ids, view.child_keys, strict=True):
            reachable.add(child_id)
            child = views.get(child_id)
            if child is None:
                yield f"node {view.node_id} has child {child_id} that is not in the tree"
            elif child.parent_id != view.node_id or child.child_key != child_key:
                yield f"node {child_id} does not know its parent {view.node_id} or its key"
    for orphan in views.keys() - reachable:
        yield f"node {orphan} is in the tree but no parent's child"


def _broken_edges(core: UnifiedTreeCore, views: dict[NodeId, NodeView]) -> Iterator[str]:
    page_bytes = core.page_size * TOKEN_BYTES
    for view in views.values():
        if view.parent_id is None:
            if view.node_id != ROOT or view.edge or view.end_page:
                yield f"node {view.node_id} has no parent but is no root"
            continue
        parent = views.get(view.parent_id)
        if parent is None:
            yield f"node {view.node_id} has parent {view.parent_id} that is not in the tree"
            continue
        num_pages = view.end_page - view.start_page
        if num_pages < 1 or len(view.edge) != num_pages * page_bytes:
            yield f"node {view.node_id}: edge of {len(view.edge)} bytes for {num_pages} pages"
        if view.start_page != parent.end_page:
            yield f"node {view.node_id} starts at {view.start_page}, its parent ends elsewhere"
        lead = DIGEST_BYTES if view.parent_id == ROOT else 0
        if (
            len(view.child_key) != lead + page_bytes
            or view.child_key[lead:] != (view.edge[:page_bytes])
        ):
            yield f"node {view.node_id}: its key is not the first page of its edge"


def _broken_values(core: UnifiedTreeCore, views: dict[NodeId, NodeView]) -> Iterator[str]:
    for index, component in enumerate(core.components):
        seen: Counter[int] = Counter()
        for view in views.values():
            value = view.values[index]
            if value is not None:
                seen.update(value.tolist())
        for unit in (unit for unit, count in seen.items() if count > 1):
            yield f"{component.name}: unit {unit} is in the tree twice"
    for view in views.values():
        backbone = view.values[0]
        if view.node_id == ROOT:
            if any(value is not None for value in view.values):
                yield "the root has a value"
        elif backbone is None or len(backbone) != view.end_page - view.start_page:
            yield f"node {view.node_id} has not one backbone unit per page"


def _broken_locks(core: UnifiedTreeCore, views: dict[NodeId, NodeView]) -> Iterator[str]:
    expected = {node_id: [0] * len(core.components) for node_id in views}
    for receipt in core.receipts():
        for index, top in enumerate(receipt.tops):
            view = views.get(receipt.node)
            if view is None:
                yield f"receipt {receipt.receipt_id} locks node {receipt.node}, which is gone"
                continue
            if view.end_page != receipt.num_pages:
                yield f"receipt {receipt.receipt_id}: node {view.node_id} ends elsewhere"
            while view.parent_id is not None and view.start_page >= top:
                expected[view.node_id][index] += 1
                view = views[view.parent_id]
    for view in views.values():
        if min(view.locks) < 0:
            yield f"node {view.node_id}: negative locks {view.locks}"
        if list(view.locks) != expected[view.node_id]:
            yield f"node {view.node_id}: locks {view.locks}, receipts say {expected[view.node_id]}"
        if view.node_id != ROOT and max(view.locks) > view.locks[0]:
            yield f"node {view.node_id} is locked more often than its backbone: {view.locks}"


def _broken_counts(core: UnifiedTreeCore, views: dict[NodeId, NodeView]) -> Iterator[str]:
    for index, component in enumerate(core.components):
        evictable = protected = 0
        for view in views.values():
            value = view.values[index]
            num_units = 0 if value is None else len(value)
            if view.locks[index]:
                protected += num_units
            else:
                evictable += num_units
        kept = (core.num_evictable(index), core.num_protected(index))
        if kept != (evictable, protected):
            yield f"{component.name}: counts {kept}, the nodes have {(evictable, protected)}"


def _broken_candidates(core: UnifiedTreeCore, views: dict[NodeId, NodeView]) -> Iterator[str]:
    for index, component in enumerate(core.components):
        defined = {
            view.node_id
            for view in views.values()
            if view.node_id != ROOT
            and (
                not view.child_ids and not any(view.locks)
                if index == 0
                else view.values[index] is not None and not view.locks[index]
            )
        }
        kept = core.candidates(index)
        if kept != defined:
            yield f"{component.name}: candidates {sorted(kept)}, by definition {sorted(defined)}"


def _broken_names(core: UnifiedTreeCore, views: dict[NodeId, NodeView]) -> Iterator[str]:
    """Recompute the hash chain where events are recorded."""
    is_named = any(view.hashes for view in views.values())
    for view in views.values():
        if view.parent_id is None or not is_named:
            continue
        above = views[view.parent_id].hashes if view.parent_id in views else ()
        previous = above[-1] if above else view.child_key[:DIGEST_BYTES]
        if view.hashes != hash_pages(previous, view.edge, page_size=core.page_size):
            yield f"node {view.node_id}: its pages' names are not those of its path"
