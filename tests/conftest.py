"""Owns what every test shares: how far random tests look, golden files, what a skip must say."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.scale import scale

HAS_GPU = Path("/dev/nvidia0").exists()

pytest_plugins = ["tests.devcluster.fixtures"]

for _name, _max_examples in (("check", 100), ("full", 1_000)):
    settings.register_profile(
        _name,
        derandomize=True,
        max_examples=_max_examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(scale())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the one option of this suite."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the expected files of golden tests; the diff is the review",
    )


def pytest_configure() -> None:
    """Set what must be set before torch and Triton are loaded.

    torch and BLAS get one thread each: tests run side by side. Without a GPU, Triton's kernels are
    interpreted; on a GPU the same tests run the compiled ones.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not HAS_GPU:
        os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests where there is no GPU, saying so; they are counted in the summary."""
    if HAS_GPU:
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="missing: an NVIDIA GPU (/dev/nvidia0)"))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Tell whether golden files are to be rewritten rather than compared."""
    return bool(request.config.getoption("--update-golden"))
