"""Owns what every test shares: how far random tests look, golden files, what a skip must say."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.scale import scale

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
    """Give torch and BLAS one thread each: tests run side by side; set before either is loaded."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests where there is no GPU, saying so; they are counted in the summary."""
    if Path("/dev/nvidia0").exists():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="missing: an NVIDIA GPU (/dev/nvidia0)"))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Tell whether golden files are to be rewritten rather than compared."""
    return bool(request.config.getoption("--update-golden"))
