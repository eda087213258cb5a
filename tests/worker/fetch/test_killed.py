"""Killed at random moments, again and again: what comes out is whole, and little comes twice."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.scale import count
from tests.worker.fetch.faulty_server import serving
from tests.worker.fetch.hub_server import hub_with
from tests.worker.fetch.registry_server import registry_with
from tests.worker.fetch.s3_server import s3_server
from tests.worker.fetch.small_model import Fetcher, model_files, read_folder

from mizzen_worker.fetch.one_file import CHUNK_BYTES

WEIGHT_BYTES = 4 << 20
BYTES_PER_SECOND = 4 << 20
PARALLEL = 2
MOST_RUNS = 400


def _start(arguments: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "mizzen_worker", "fetch-weights", *arguments],
        env={"PATH": os.defpath, "PYTHONPATH": "worker", **environment},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )


def _killed_until_done(
    arguments: list[str], environment: Mapping[str, str], rng: random.Random
) -> int:
    """Give how many runs were killed; the moments lie all over a run, its start-up included."""
    for num_killed in range(MOST_RUNS):
        process = _start(arguments, environment)
        try:
            _, told = process.communicate(timeout=rng.uniform(0.3, 1.8))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            continue
        assert process.returncode == 0, told.decode()
        return num_killed
    raise AssertionError(f"not done after {MOST_RUNS} runs")


@pytest.mark.parametrize("seed", range(count(check=1, full=8)))
def test_a_hub_download_survives_any_moment(tmp_path: Path, seed: int) -> None:
    files = model_files(tmp_path, weight_bytes=WEIGHT_BYTES)
    fetcher = Fetcher(tmp_path / "models")
    arguments = ["--to", str(fetcher.folder), "--parallel", str(PARALLEL), "hf://org/tiny"]
    with hub_with(files) as hub:
        hub.content.bytes_per_second = BYTES_PER_SECOND / PARALLEL
        environment = {"HF_ENDPOINT": hub.api.url}
        num_killed = _killed_until_done(arguments, environment, random.Random(seed))
        sent = hub.content.bytes_sent
    assert num_killed >= 1
    assert read_folder(fetcher.folder / "tiny") == files
    assert fetcher.run("--verify", str(fetcher.folder / "tiny")).status == 0
    # What a killed process had asked for and not written: a chunk, and what sockets hold.
    waste = PARALLEL * num_killed * (CHUNK_BYTES + (4 << 20))
    assert sent <= 2 * WEIGHT_BYTES + len(files["tokenizer.json"]) + waste


@pytest.mark.slow
def test_a_bucket_survives_any_moment(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = model_files(tmp_path, weight_bytes=WEIGHT_BYTES)
    fetcher = Fetcher(tmp_path / "models")
    with s3_server(tmp_path_factory.mktemp("s3")) as server, serving(server.forward) as proxy:
        for name, body in files.items():
            server.put(f"org/tiny/{name}", body)
        proxy.bytes_per_second = BYTES_PER_SECOND / PARALLEL
        arguments = ["--to", str(fetcher.folder), "--parallel", str(PARALLEL)]
        num_killed = _killed_until_done(
            [*arguments, "s3://models/org/tiny"],
            server.environment(proxy.url),
            random.Random(5),
        )
    assert num_killed >= 1
    assert read_folder(fetcher.folder / "tiny") == files
    assert fetcher.run("--verify", str(fetcher.folder / "tiny")).status == 0


@pytest.mark.slow
def test_an_image_survives_any_moment(tmp_path: Path) -> None:
    files = model_files(tmp_path, weight_bytes=WEIGHT_BYTES)
    fetcher = Fetcher(tmp_path / "models")
    with registry_with(layers=[{f"models/{name}": body for name, body in files.items()}]) as found:
        found.server.bytes_per_second = BYTES_PER_SECOND
        arguments = ["--to", str(fetcher.folder), found.source]
        num_killed = _killed_until_done(arguments, {}, random.Random(3))
    assert num_killed >= 1
    assert read_folder(fetcher.folder / "tiny") == files
    assert fetcher.run("--verify", str(fetcher.folder / "tiny")).status == 0


def test_sigterm_ends_it_soon_and_says_so(tmp_path: Path) -> None:
    files = model_files(tmp_path, weight_bytes=WEIGHT_BYTES)
    file = tmp_path / "termination.json"
    arguments = ["--termination-file", str(file), "--to", str(tmp_path / "m"), "hf://org/tiny"]
    with hub_with(files) as hub:
        hub.content.bytes_per_second = 1 << 18
        process = _start(arguments, {"HF_ENDPOINT": hub.api.url})
        assert hub.content.has_sent.wait(60)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 75, told
    assert b'"reason":"Interrupted"' in file.read_bytes()
