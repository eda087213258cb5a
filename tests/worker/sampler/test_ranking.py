"""The best tokens come largest first and equal ones by id, whatever the ties."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from mizzen_worker.sampler import ranking
from mizzen_worker.sampler.ranking import best_tokens


@given(
    values=st.lists(st.integers(-2, 3), min_size=1, max_size=60),
    count=st.integers(1, 70),
    num_rows=st.integers(1, 3),
)
def test_order_is_by_value_and_then_by_id(values: list[int], count: int, num_rows: int) -> None:
    rows = np.stack([np.roll(np.array(values, np.float32), 3 * i) for i in range(num_rows)])
    rows[rows < -1] = -np.inf
    got_values, got_ids = best_tokens(torch.from_numpy(rows), count)
    order = np.argsort(-rows, axis=-1, kind="stable")[:, :count]
    np.testing.assert_array_equal(got_ids.numpy(), order)
    np.testing.assert_array_equal(got_values.numpy(), np.take_along_axis(rows, order, -1))


@given(values=st.lists(st.integers(-2, 2), min_size=3, max_size=60), data=st.data())
def test_ties_are_settled_without_asking_the_device(values: list[int], data: st.DataObject) -> None:
    # What a CUDA device runs: on a CPU only where the cut goes through equal values.
    count = data.draw(st.integers(1, len(values) - 1))
    row = torch.tensor([values], dtype=torch.float32)
    best, ids = row.topk(count)
    ids = ranking._with_lowest_ids(row, best, ids)
    expected = np.argsort(-row.numpy(), axis=-1, kind="stable")[:, :count]
    assert sorted(ids[0].tolist()) == sorted(expected[0].tolist())


def test_rows_with_nan_give_ids_in_range() -> None:
    rows = torch.zeros(2, 30)
    rows[1, 7] = float("nan")
    _, ids = best_tokens(rows, 5)
    assert ids[0].tolist() == [0, 1, 2, 3, 4]
    assert ids.min() >= 0
    assert ids.max() < 30
