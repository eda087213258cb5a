"""Owns what tests of the worker share: which cases of kernels are quick, how interpreted ones call.

On the CPU a kernel is interpreted, a thousand times slower than it is. The quick run therefore
takes a few cases of each parametrised test of kernels, spread over all of them; ``make test`` and a
GPU run every one.
"""

from collections import defaultdict
from collections.abc import Iterator

import pytest
from tests.conftest import HAS_GPU
from tests.scale import count

_INTERPRETED = (
    "tests/worker/kernels/gpu/",
    "tests/worker/layers/gpu/",
    "tests/worker/attention/test_triton",
    "tests/worker/model_executor/test_fp8_",
    "tests/worker/model_executor/test_gpu_",
    "tests/worker/model_executor/test_decode_graphs",
    "tests/worker/model_executor/test_prefill_graphs",
)
_ALL_CASES = 1_000_000


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect cases beyond the first, the last and what lies between; pytest counts them."""
    most = _ALL_CASES if HAS_GPU else count(check=3, full=_ALL_CASES)
    cases_by_test: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.nodeid.startswith(_INTERPRETED):
            cases_by_test[item.nodeid.partition("[")[0]].append(item)
    left_out = {
        id(item)
        for cases in cases_by_test.values()
        if len(cases) > most
        for place, item in enumerate(cases)
        if place not in _spread(len(cases), most)
    }
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
        items[:] = [item for item in items if id(item) not in left_out]


def _spread(num_cases: int, most: int) -> set[int]:
    """Places of ``most`` cases, the first and the last among them."""
    return {place * (num_cases - 1) // (most - 1) for place in range(most)}


@pytest.fixture(scope="session", autouse=True)
def _quick_calls_of_interpreted_functions() -> None:
    """Let a kernel's functions not patch Triton's language again at each call.

    It is patched for the launch already; only for Triton's own functions, which see it under
    another name, there is something to do, and that once. Half of the time goes there otherwise.
    """
    # Not at the top: whether kernels are interpreted is set before Triton is loaded.
    from triton.runtime import interpreter

    patched = set()

    def call(function: interpreter.InterpretedFunction, *arguments: object, **named: object):
        if function.fn.__module__ not in patched:
            patched.add(function.fn.__module__)
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*arguments, **named)

    interpreter.InterpretedFunction.__call__ = call


@pytest.fixture(scope="module", autouse=True)
def _interpreted_kernels_stay_inside(request: pytest.FixtureRequest) -> Iterator[None]:
    """See ``bounds_check.py``."""
    if HAS_GPU or not request.node.nodeid.startswith(_INTERPRETED):
        yield
        return
    # Not at the top: it loads Triton.
    from tests.worker.kernels.gpu.bounds_check import checked_bounds

    with checked_bounds():
        yield
