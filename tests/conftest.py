"""Owns what every test shares: hypothesis profiles, golden files, and what a skip must say."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.devcluster.fixtures"]

settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", max_examples=20_000, deadline=None)
settings.load_profile("ci")


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
