"""A process that ends before any of its touches of the disk leaves what the next one completes."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.scale import count
from tests.worker.fetch.hub_server import hub_with
from tests.worker.fetch.registry_server import registry_with
from tests.worker.fetch.small_model import Fetcher, model_files, read_folder

STRIDE = count(check=9, full=1)
DRIVER = Path(__file__).with_name("crash_driver.py")


def _check_each_crash(
    tmp_path: Path, files: Mapping[str, bytes], source: str, environment: Mapping[str, str]
) -> None:
    base = tmp_path / "models"
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(base), str(STRIDE), source],
        env={**os.environ, **environment, "PYTHONPATH": ".:worker"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert len(lines) * STRIDE > 40
    for touch, _, after in lines:
        assert after == "0", f"touch {touch}: {done.stderr}"
        folder = base / f"at-{touch}" / "tiny"
        assert read_folder(folder) == files, f"touch {touch}"
        assert Fetcher(base).run("--verify", str(folder)).status == 0
        left = [path.name for path in (base / f"at-{touch}" / ".partial").iterdir()]
        assert left == [".tiny.lock"]


@pytest.mark.timeout(600)
def test_a_hub(tmp_path: Path) -> None:
    files = model_files(tmp_path, weight_bytes=40_000)
    with hub_with(files) as hub:
        _check_each_crash(tmp_path, files, "hf://org/tiny", {"HF_ENDPOINT": hub.api.url})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_image(tmp_path: Path) -> None:
    files = model_files(tmp_path, weight_bytes=40_000)
    with registry_with(layers=[{f"models/{name}": body for name, body in files.items()}]) as found:
        _check_each_crash(tmp_path, files, found.source, {})
