"""Groups of decode rows: always true, never worse than any one level, stable while nothing changes.

Random trees of pages stand for the cache: what a request has in common with another is what their
paths have in common. The scheduler's own workloads check groups too, through the fake runner.
"""

import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from tests.worker.scheduler.harness import Harness, make_submit

from mizzen_worker.cache.lease import KvLease
from mizzen_worker.cache.results import LockReceipt
from mizzen_worker.contracts.batch import PrefixGroup
from mizzen_worker.contracts.ids import NodeId, SlotIndex
from mizzen_worker.memory.request_table import RequestTable
from mizzen_worker.scheduler.prefix_groups import GroupRule, PrefixGroups

RECEIPT = LockReceipt(receipt_id=1, node=NodeId(1), num_pages=0, tops=(0,))


@dataclass
class Running:
    """A request: pages of the tree, then pages of its own."""

    slot: SlotIndex
    lease: KvLease


class World:
    """Requests come, go, and find more of their pages in the tree."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.page_size = self.dice.choice([1, 4, 16])
        self.min_rows = self.dice.choice([2, 3, 4])
        self.least_pages = self.dice.choice([1, 2, 3])
        self.table = RequestTable(max_slots=24, max_pages_per_slot=20)
        self.groups = PrefixGroups(
            table=self.table,
            page_size=self.page_size,
            rule=GroupRule(
                min_rows=self.min_rows,
                min_tokens=(self.least_pages - 1) * self.page_size + 1,
            ),
        )
        self.page_by_path: dict[tuple[int, ...], int] = {}
        self.num_pages = 0
        self.running: dict[int, Running] = {}

    def new_page(self) -> int:
        self.num_pages += 1
        return self.num_pages

    def path(self) -> list[int]:
        """Pages of the tree, each reached by one path only; few branches, so that many share."""
        pages, steps = [], ()
        for _ in range(self.dice.randrange(9)):
            steps = (*steps, int(self.dice.random() < 0.25))
            if steps not in self.page_by_path:
                self.page_by_path[steps] = self.new_page()
            pages.append(self.page_by_path[steps])
        return pages

    def enter(self) -> None:
        if not self.table.num_free:
            return
        slot, tree = self.table.take(), np.array(self.path(), dtype=np.int32)
        lease = KvLease(lease_id=1, receipt=RECEIPT, pages=tree, priority=0, boundary=0)
        lease.append(np.array([self.new_page() for _ in range(3)], dtype=np.int32))
        self.running[slot] = Running(slot, lease)
        self.sync(self.running[slot])

    def sync(self, request: Running) -> None:
        lease = request.lease
        first, lease.num_synced = lease.num_synced, lease.num_pages
        if first < lease.num_pages:
            self.table.write(request.slot, first, lease.pages(first, lease.num_pages))
            self.groups.note(request.slot, lease)

    def leave(self) -> None:
        slot = self.dice.choice(sorted(self.running))
        self.table.give_back(SlotIndex(slot))
        self.groups.forget(SlotIndex(slot))
        del self.running[slot]

    def adopt(self) -> None:
        """A page of its own turns out to be in the tree: it is told to the runner later."""
        lease = self.running[self.dice.choice(sorted(self.running))].lease
        if lease.num_tree == lease.num_pages:
            return
        tree = tuple(lease.pages(0, lease.num_tree).tolist())
        after = {path[: len(tree) + 1] for path in self.page_by_path}
        for path in sorted(after):
            pages = tuple(self.page_by_path[path[: end + 1]] for end in range(len(path)))
            if len(pages) == len(tree) + 1 and pages[:-1] == tree:
                lease.adopt(np.array(pages[-1:], dtype=np.int32), RECEIPT)
                slot = next(s for s, r in self.running.items() if r.lease is lease)
                self.groups.note(SlotIndex(slot), lease)
                return

    def comparable(self, slot: int) -> tuple[int, ...]:
        lease = self.running[slot].lease
        return tuple(lease.pages(0, min(lease.num_tree, lease.num_synced)).tolist())

    def saved_at(self, level: int, due: list[int]) -> int:
        """Pages that groups of exactly so many shared pages save."""
        rows = [self.comparable(slot)[:level] for slot in due]
        counts = Counter(row for row in rows if len(row) == level)
        return sum((n - 1) * level for n in counts.values() if n >= self.min_rows)

    def check(self) -> int:
        due = sorted(
            self.dice.sample(sorted(self.running), self.dice.randint(0, len(self.running)))
        )
        lengths = np.zeros(25, dtype=np.int64)
        for slot, request in self.running.items():
            lengths[slot] = request.lease.num_pages
        arranged = self.groups.arrange(np.array(due, dtype=np.int64), lengths)
        assert sorted(arranged.slots.tolist()) == due
        again = self.groups.arrange(np.array(due, dtype=np.int64), lengths)
        assert again is arranged, "nothing changed"
        num_alone = arranged.groups[0].first if arranged.groups else len(due)
        alone = lengths[arranged.slots[:num_alone]].tolist()
        assert arranged.groups or alone == sorted(alone, reverse=True)
        num_saved, after = 0, 0
        for group in arranged.groups:
            assert group.first >= after
            after = group.first + group.count
            assert group.count >= self.min_rows
            num_pages, rest = divmod(group.num_tokens, self.page_size)
            assert rest == 0
            assert num_pages >= self.least_pages
            rows = [self.comparable(slot) for slot in arranged.slots[group.first : after].tolist()]
            assert {row[:num_pages] for row in rows} == {rows[0][:num_pages]}
            assert min(map(len, rows)) >= num_pages
            num_saved += (group.count - 1) * num_pages
        best = max(self.saved_at(level, due) for level in range(self.least_pages, 12))
        assert num_saved >= best
        return len(arranged.groups)


@pytest.mark.parametrize("seed", range(40))
def test_groups_are_true_and_save_at_least_what_any_one_level_saves(seed: int) -> None:
    world = World(seed)
    num_groups = 0
    for _ in range(150):
        action = world.dice.random()
        if action < 0.5 or not world.running:
            world.enter()
        elif action < 0.65:
            world.leave()
        elif action < 0.85:
            world.adopt()
        else:
            world.sync(world.running[world.dice.choice(sorted(world.running))])
        num_groups += world.check()
    assert num_groups > 0


def groups_of(harness: Harness) -> list[tuple[PrefixGroup, ...]]:
    return [batch.decodes.groups for batch in harness.runner.batches if len(batch.decodes.slots)]


@pytest.mark.parametrize("delays", [None, 1])
def test_requests_of_one_prefix_decode_side_by_side(delays: int | None) -> None:
    """Two prompts of 5 pages, asked for in turn, with other requests between them."""
    rule = GroupRule(min_rows=3, min_tokens=16)
    harness = Harness(max_slots=16, max_chunk_tokens=1000, delays=delays, group_rule=rule)
    prompts = [[7 + kind] * 20 for kind in range(2)]
    for number in range(12):
        prompt = [*prompts[number % 2], number] if number % 3 else [30 + number, 5]
        harness.submit(
            make_submit(f"r{number}", prompt, ignore_eos=True, max_new_tokens=12 + number)
        )
    harness.run()
    harness.assert_all_served()
    largest = max(groups_of(harness), key=lambda groups: sum(group.count for group in groups))
    assert [(group.count, group.num_tokens) for group in largest] == [(4, 20), (4, 20)]


def test_a_deeper_prefix_is_taken_where_it_saves_more() -> None:
    """All share 4 pages; three of them 12: (3 - 1) * 12 pages are more than (5 - 1) * 4."""
    harness = Harness(max_chunk_tokens=1000, group_rule=GroupRule(min_rows=3, min_tokens=1))
    system = [9] * 16
    harness.warm([*system, *([8] * 32), 1])
    for number, tail in enumerate([[8] * 32, [8] * 32, [8] * 32, [], []]):
        prompt = [*system, *tail, 20 + number]
        harness.submit(make_submit(f"r{number}", prompt, ignore_eos=True, max_new_tokens=9))
    harness.run()
    harness.assert_all_served()
    assert (PrefixGroup(first=0, count=3, num_tokens=48),) in groups_of(harness)


def test_the_longest_rows_come_first() -> None:
    harness = Harness(max_chunk_tokens=1000)
    for number, length in enumerate([5, 40, 12, 60]):
        prompt = [number + 1] * length
        harness.submit(make_submit(f"r{number}", prompt, ignore_eos=True, max_new_tokens=9))
    harness.run()
    starts = [batch.decodes.starts.tolist() for batch in harness.runner.batches]
    assert [60, 40, 12, 5] in starts
    assert all(row == sorted(row, reverse=True) for row in starts)


def test_few_rows_and_short_prefixes_are_no_group() -> None:
    rule = GroupRule(min_rows=3, min_tokens=21)
    harness = Harness(max_chunk_tokens=1000, group_rule=rule)
    for number in range(3):
        prompt = [9] * 20 if number else [9] * 40
        harness.submit(
            make_submit(f"r{number}", [*prompt, number], ignore_eos=True, max_new_tokens=9)
        )
    harness.run()
    assert not any(groups_of(harness))
