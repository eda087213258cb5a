"""Passes hold every row whole or in chunks, in order, and never too many scored positions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mizzen_worker.contracts.batch import DecodeRows, ExtendRow
from mizzen_worker.model_executor.step_passes import plan_passes


@st.composite
def extend_rows(draw: st.DrawFn) -> ExtendRow:
    start, num_new = draw(st.integers(0, 5)), draw(st.integers(1, 12))
    target_ids, first = None, 0
    if draw(st.booleans()):
        first = draw(st.integers(start, start + num_new))
        count = draw(st.integers(0, start + num_new - first))
        target_ids = np.arange(100 + first, 100 + first + count, dtype=np.int32)
    return ExtendRow(
        request_id="r",
        slot=1,
        start=start,
        num_new=num_new,
        token_ids=np.arange(start, start + num_new, dtype=np.int32),
        is_sampled=target_ids is None or first + len(target_ids) < start + num_new,
        target_start=first,
        target_ids=target_ids,
    )


@given(
    rows=st.lists(extend_rows(), max_size=5),
    num_decodes=st.integers(0, 2),
    max_targets=st.integers(1, 8),
)
def test_passes_are_the_step_cut_into_chunks(
    rows: list[ExtendRow], num_decodes: int, max_targets: int
) -> None:
    slots = np.arange(2, 2 + num_decodes, dtype=np.int32)
    decodes = DecodeRows(slots=slots, starts=slots)
    passes = plan_passes(tuple(rows), decodes, max_targets=max_targets)
    assert passes[0].decodes is decodes
    assert not any(len(part.decodes.slots) for part in passes[1:])
    total = sum(len(row.target_ids) for row in rows if row.target_ids is not None)
    assert len(passes) == max(1, -(-total // max_targets))
    pieces: list[list[ExtendRow]] = [[] for _ in rows]
    for part in passes:
        assert list(part.origins) == sorted(set(part.origins))
        scored = [row.target_ids for row in part.extends if row.target_ids is not None]
        assert sum(map(len, scored)) <= max_targets
        for origin, row in zip(part.origins, part.extends, strict=True):
            pieces[origin].append(row)
    for row, parts in zip(rows, pieces, strict=True):
        require_chunks(row, parts)


def require_chunks(row: ExtendRow, parts: list[ExtendRow]) -> None:
    """The parts follow each other without a gap; only the last is sampled; no target is lost."""
    position = row.start
    for part in parts:
        assert part.start == position
        assert part.num_new >= 1
        assert part.token_ids.tolist() == list(range(position, position + part.num_new))
        position += part.num_new
        if part.target_ids is not None and len(part.target_ids):
            assert part.target_ids.tolist()[0] == 100 + part.target_start
            assert part.start <= part.target_start
            assert part.target_start + len(part.target_ids) <= position
    assert position == row.start + row.num_new
    assert [part.is_sampled for part in parts] == [False] * (len(parts) - 1) + [row.is_sampled]
    if row.target_ids is not None:
        targets = [part.target_ids for part in parts if part.target_ids is not None]
        assert np.concatenate(targets).tolist() == row.target_ids.tolist()
