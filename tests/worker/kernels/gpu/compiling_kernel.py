"""Stands in for a Triton kernel in its module, and compiles instead of launching."""

from collections.abc import Callable

from tests.worker.kernels.gpu.ahead_of_time import compile_kernel


class CompilingKernel:
    """``kernel[grid](...)`` compiles for the claimed device and prints what it takes."""

    def __init__(self, kernel: object) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def compile_it(*arguments: object, **options: object) -> None:
            compile_kernel(self._kernel, grid, *arguments, **options)

        return compile_it
