"""Random numbers drawn on a GPU are the bits of the CPU's."""

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.gpu import counter_random as module
from mizzen_worker.sampler.counter_random import uniform

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@triton.jit
def _uniform_kernel(seeds, positions, numbers, count, size: tl.constexpr):
    index = tl.arange(0, size)
    seed = tl.load(seeds + index, mask=index < count, other=0)
    position = tl.load(positions + index, mask=index < count, other=0)
    tl.store(numbers + index, module.uniform(seed, position), mask=index < count)


def test_numbers_are_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(3)
    seeds = torch.randint(-(2**63), 2**63 - 1, (1000,), generator=generator)
    positions = torch.randint(0, 2**40, (1000,), generator=generator)
    seeds[:3] = torch.tensor([0, -1, -(2**63)])
    numbers = torch.empty(1000, dtype=torch.float64, device=DEVICE)
    _uniform_kernel[(1,)](seeds.to(DEVICE), positions.to(DEVICE), numbers, 1000, size=1024)
    assert torch.equal(numbers.cpu(), uniform(seeds, positions))
