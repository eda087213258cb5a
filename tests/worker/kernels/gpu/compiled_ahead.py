"""Kernels of no use, compiled in other processes by a process that has no GPU.

Run as a program with a folder: fills it as a cache for two specialisations of a kernel that was
launched several times and for one that calls the same function, then finds all there, notes the
work of a second model that shares one of them, and prints what happened as JSON. A process of its
own, because the driver is global and kernels under test elsewhere are interpreted.
"""

import json
import os
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.gpu.cache_keys import settle_key
from mizzen_worker.kernels.gpu.claimed_driver import ClaimedDriver
from mizzen_worker.kernels.gpu.compile_ahead import recorded_kernels
from mizzen_worker.kernels.gpu.known_kernels import UnknownKernelError, only_known_kernels
from mizzen_worker.model_executor.kernel_cache import KernelFolder

_ONE: tl.constexpr = tl.constexpr(1)


@triton.jit
def plus_one(value):
    return value + _ONE


@triton.jit
def add_one(x, y, size, BLOCK: tl.constexpr, PDL: tl.constexpr):  # noqa: N803
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()
    value = tl.load(x + index, mask=index < size)
    tl.store(y + index, plus_one(value), mask=index < size)


@triton.jit
def add_to_first(x):
    tl.store(x, plus_one(tl.load(x)))


def launch(sizes: tuple[int, ...] = (64, 256, 64, 256)) -> None:
    for size in sizes:
        x = torch.empty(size, dtype=torch.bfloat16, device="meta")
        add_one[(1,)](x, x, size, BLOCK=size, PDL=1, num_warps=4, launch_pdl=True)
        # Compiled after another that calls the same function, here; elsewhere before it, or alone.
        add_to_first[(1,)](x)


def main() -> None:
    # As users run it, this module is imported under its name by those that compile.
    path = Path(sys.argv[1])
    triton.runtime.driver.set_active(ClaimedDriver(90))
    folder = KernelFolder(path=path, environment=dict(os.environ))
    folder.use()
    settle_key(add_one)
    settle_key(add_to_first)
    told: list[tuple[int, int]] = []
    for _ in range(2):
        folder.fill(launch, facts="toy", capability=90, progress=lambda *step: told.append(step))
    files = sorted(file.name for file in path.iterdir())
    hits: list[bool] = []
    triton.knobs.compilation.listener = lambda **facts: hits.append(facts["cache_hit"])
    for size in (64, 256):
        x = torch.empty(size, dtype=torch.bfloat16, device="meta")
        add_one.warmup(x, x, size, BLOCK=size, PDL=1, num_warps=4, launch_pdl=True, grid=(1,))
    add_to_first.warmup(x, grid=(1,))
    with only_known_kernels():
        add_to_first.warmup(x, grid=(1,))
        try:
            add_to_first.warmup(x.float(), grid=(1,))
        except UnknownKernelError as error:
            refused = str(error)
    new = len(list(path.iterdir())) - len(files)
    # A launch of the compiled one would fail here, and read what is not there on a GPU.
    with recorded_kernels() as requests:
        launch((64, 512, 512))
    noted = [request.name for request in requests]
    facts = {"noted": noted, "told": told, "hits": hits, "new": new, "files": files}
    print(json.dumps({**facts, "refused": refused}))


if __name__ == "__main__":
    from tests.worker.kernels.gpu import compiled_ahead

    compiled_ahead.main()
