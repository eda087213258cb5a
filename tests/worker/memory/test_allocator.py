"""M2 and M5: pages are out or free, never both, and a refused call changes nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.memory.allocator import PageAllocator


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40))
def test_pages_are_conserved_and_page_zero_never_leaves(steps: list[tuple[bool, int]]) -> None:
    allocator = PageAllocator(num_pages=20)
    out: list[np.ndarray] = []
    for is_take, count in steps:
        if is_take and count <= allocator.num_free:
            out.append(allocator.take(count))
        elif not is_take and out:
            allocator.give_back(out.pop(count % len(out)))
        held = [page for pages in out for page in pages.tolist()]
        assert sorted(held + allocator.free_pages().tolist()) == list(range(1, 21))


def test_taking_too_many_changes_nothing() -> None:
    allocator = PageAllocator(num_pages=3)
    with pytest.raises(InvariantError, match=r"take\(4\) of 3"):
        allocator.take(4)
    assert allocator.take(3).tolist() == [1, 2, 3]


@pytest.mark.parametrize("pages", [[0], [4], [2], [1, 1], [-1], [1, 9]])
def test_giving_back_what_is_not_out_changes_nothing(pages: list[int]) -> None:
    allocator = PageAllocator(num_pages=3)
    allocator.take(1)
    with pytest.raises(InvariantError, match="not out"):
        allocator.give_back(np.array(pages, dtype=np.int32))
    assert allocator.num_free == 2
