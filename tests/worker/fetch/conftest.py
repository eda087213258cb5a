"""What tests of fetching share: where to fetch to, and a model to fetch."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worker.fetch.small_model import Fetcher, model_files


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """A model's files."""
    return model_files(tmp_path)


@pytest.fixture
def fetcher(tmp_path: Path) -> Fetcher:
    """The command, with an empty folder."""
    return Fetcher(tmp_path / "models")


@pytest.fixture(autouse=True)
def _own_log_handlers() -> Iterator[None]:
    """The command sets up the log of its process, which here is that of all tests."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
