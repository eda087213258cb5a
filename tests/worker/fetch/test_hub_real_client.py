"""The tests' hub is one to Hugging Face's own client too, so fetching from it shows something."""

import subprocess
import sys
from pathlib import Path

from tests.worker.fetch.hub_server import TOKEN, hub_with
from tests.worker.fetch.small_model import Fetcher, read_folder, unwanted_files

PROGRAM = """
import sys
from huggingface_hub import HfApi, snapshot_download
snapshot_download("org/tiny", local_dir=sys.argv[1])
commit = HfApi().model_info("org/tiny", revision="main").sha
print(commit)
for entry in HfApi().list_repo_tree("org/tiny", revision=commit, recursive=True):
    if hasattr(entry, "size"):
        print(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else entry.blob_id)
"""


def test_the_real_client_gets_the_same_from_it(
    fetcher: Fetcher, files: dict[str, bytes], tmp_path: Path
) -> None:
    everything = files | unwanted_files()
    with hub_with(everything, is_gated=True) as hub:
        environment = {
            "HF_ENDPOINT": hub.api.url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "theirs")],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not any("authorization" in request.headers for request in hub.content.requests)
        fetcher.environment |= environment
        assert fetcher.fetch("hf://org/tiny").status == 0
        commit = hub.repository.commit
    theirs = read_folder(tmp_path / "theirs")
    assert {name: body for name, body in theirs.items() if not name.startswith(".")} == everything
    assert read_folder(fetcher.folder / "tiny") == {name: theirs[name] for name in files}
    first, *entries = done.stdout.splitlines()
    assert first == commit
    assert len(entries) == len(everything)
