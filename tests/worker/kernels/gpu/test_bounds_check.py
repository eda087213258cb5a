"""The check of bounds sees what it is for; every test here is under it, see ``conftest.py``."""

import re

import pytest
import torch
import triton
import triton.language as tl
from tests.worker.kernels.gpu.bounds_check import OutOfBoundsError
from triton.tools.tensor_descriptor import TensorDescriptor

from mizzen_worker.kernels.gpu.launching import IS_INTERPRETED

pytestmark = pytest.mark.skipif(
    not IS_INTERPRETED, reason="missing: the interpreter (a GPU does not check bounds)"
)


@triton.jit
def _copy(source, target, size, B: tl.constexpr):  # noqa: N803
    lane = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(target + lane, tl.load(source + lane, mask=lane < size), mask=lane < size)


@triton.jit
def _copy_by_index(source, index, target, stride):
    tl.store(target, tl.load(source + tl.load(index).to(tl.int64) * stride))


@triton.jit
def _count(counter, place):
    tl.atomic_add(counter + place, 1)


@triton.jit
def _swap(counter, place):
    tl.atomic_cas(counter + place, 0, 1)


@triton.jit
def _copy_box(source, target, row, B: tl.constexpr):  # noqa: N803
    lane = tl.arange(0, B)
    box = source.load([row, 0])
    tl.store(target + lane[:, None] * B + lane[None, :], box)


def test_lanes_inside_and_masked_ones_are_let_through() -> None:
    source, target = torch.arange(10.0), torch.empty(10)
    _copy[(2,)](source, target, 10, B=8)
    assert torch.equal(source, target)


def test_what_lies_outside_is_told_with_its_place() -> None:
    # Both are parts of larger memory: what lies beyond them is there, but not theirs.
    source, target = torch.zeros(64)[:10], torch.zeros(64)[8:17]
    expected = "_copy: a load of element 10 to 11 (2 lanes) of source, which has 10 in the shape "
    with pytest.raises(OutOfBoundsError, match=re.escape(expected)):
        _copy[(2,)](source, target, 12, B=8)
    expected = "_copy: a store of element 9 to 9 (1 lanes) of target, which has 9 in the shape (9,)"
    with pytest.raises(OutOfBoundsError, match=re.escape(expected)):
        _copy[(2,)](source, target, 10, B=8)


def test_an_index_before_the_first_or_that_nobody_wrote_leads_outside() -> None:
    source, target = torch.zeros(4, 4), torch.zeros(1)
    for dtype in (torch.int32, torch.int64):
        for index in (torch.tensor([-1], dtype=dtype), torch.empty(1, dtype=dtype)):
            with pytest.raises(OutOfBoundsError, match="_copy_by_index: a load"):
                _copy_by_index[(1,)](source, index, target, 4)


@pytest.mark.parametrize("kernel", [_count, _swap])
def test_atomics_are_checked(kernel: triton.JITFunction) -> None:
    counter = torch.zeros(2, dtype=torch.int32)
    kernel[(1,)](counter, 1)
    assert counter.tolist() == [0, 1]
    with pytest.raises(OutOfBoundsError, match="an atomic of element 2"):
        kernel[(1,)](counter, 2)


def test_boxes_beyond_the_described_tensor_are_cut_but_not_beyond_its_memory() -> None:
    source, target = torch.ones(6, 8), torch.empty(8, 8)
    described = TensorDescriptor(source, shape=[6, 8], strides=[8, 1], block_shape=[8, 8])
    _copy_box[(1,)](described, target, 0, B=8)
    assert target.sum() == 48
    wrong = TensorDescriptor(source, shape=[7, 8], strides=[8, 1], block_shape=[8, 8])
    with pytest.raises(OutOfBoundsError, match="a load of element 48 to 55"):
        _copy_box[(1,)](wrong, target, 0, B=8)


def test_new_memory_holds_no_numbers() -> None:
    assert torch.empty(3).isnan().all()
    assert torch.ones(3).new_empty(3).isnan().all()
    assert torch.empty_like(torch.ones(3, dtype=torch.int32)).min() == torch.iinfo(torch.int32).max
