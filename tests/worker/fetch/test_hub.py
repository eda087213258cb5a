"""Fetching from a hub, with everything that goes wrong there."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worker.fetch.faulty_server import Fault, Reply
from tests.worker.fetch.hub_server import TOKEN, Hub, hub_with
from tests.worker.fetch.small_model import Fetcher, read_folder, unwanted_files

from mizzen_worker.config.env import read_fetch_environment
from mizzen_worker.fetch.command import run

SOURCE = "hf://org/tiny"
LARGE = "model-00001-of-00002.safetensors"
OTHER_LARGE = "model-00002-of-00002.safetensors"


@pytest.fixture
def hub(files: dict[str, bytes], fetcher: Fetcher) -> Iterator[Hub]:
    with hub_with(files | unwanted_files()) as found:
        fetcher.environment["HF_ENDPOINT"] = found.api.url
        yield found


def _manifest(fetcher: Fetcher) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        (fetcher.folder / "tiny" / ".mizzen" / "manifest.json").read_bytes()
    )
    return found


def test_a_model_is_fetched_whole_with_a_manifest(
    hub: Hub, fetcher: Fetcher, files: dict[str, bytes]
) -> None:
    outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (0, "Done")
    assert read_folder(fetcher.folder / "tiny") == files
    total = sum(map(len, files.values()))
    assert outcome.termination["resolvedRevision"] == hub.repository.commit
    assert outcome.termination["bytes"] == total
    manifest = _manifest(fetcher)
    assert manifest["source"] == "hf://org/tiny@main"
    assert manifest["resolvedRevision"] == hub.repository.commit
    assert manifest["totalBytes"] == total
    assert manifest["files"] == [
        {"path": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        for name, body in sorted(files.items())
    ]
    assert outcome.termination["facts"] == manifest["facts"]
    assert (manifest["facts"])["architecture"] == "Qwen3ForCausalLM"
    assert [path.name for path in (fetcher.folder / "tiny" / ".mizzen").iterdir()] == [
        "manifest.json"
    ]
    assert not list((fetcher.folder / ".partial").glob("[!.]*"))


def test_a_second_run_asks_nobody(hub: Hub, fetcher: Fetcher) -> None:
    first = fetcher.fetch(SOURCE)
    before = len(hub.api.requests)
    assert fetcher.fetch(SOURCE) == first
    assert len(hub.api.requests) == before


def test_a_branch_that_is_here_is_its_commit_too(hub: Hub, fetcher: Fetcher) -> None:
    first = fetcher.fetch(SOURCE)
    before = len(hub.api.requests)
    assert fetcher.fetch(f"{SOURCE}@{hub.repository.commit}") == first
    assert fetcher.fetch(f"{SOURCE}@{'0' * 40}").reason == "InvalidSource"
    assert len(hub.api.requests) == before


def test_the_token_stays_with_the_hub(hub: Hub, fetcher: Fetcher) -> None:
    hub.repository.is_gated = True
    fetcher.environment["HF_TOKEN"] = f"{TOKEN}\n"
    assert fetcher.fetch(SOURCE).status == 0
    assert all("authorization" in request.headers for request in hub.api.requests)
    assert hub.content.requests
    assert not any("authorization" in request.headers for request in hub.content.requests)


@pytest.mark.parametrize(
    ("token", "advice"),
    [("", "give credentials that may read it in HF_TOKEN"), ("hf_wrong", "HF_TOKEN may not")],
)
def test_a_gated_model_is_refused_with_what_to_do(
    hub: Hub, fetcher: Fetcher, capsys: pytest.CaptureFixture[str], token: str, advice: str
) -> None:
    hub.repository.is_gated = True
    fetcher.environment["HF_TOKEN"] = token
    outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (1, "Unauthorized")
    assert advice in outcome.message
    assert "restricted" in outcome.message
    assert not token or token not in capsys.readouterr().err + outcome.message
    assert len(hub.api.requests) == 1


@pytest.mark.parametrize(
    ("source", "sentence"),
    [("hf://org/nobody", "Repository not found"), ("hf://org/tiny@v9", "Invalid rev id")],
)
def test_what_is_not_there_is_not_found(
    hub: Hub, fetcher: Fetcher, source: str, sentence: str
) -> None:
    outcome = fetcher.fetch(source)
    assert (outcome.status, outcome.reason) == (1, "NotFound")
    assert sentence in outcome.message
    assert "check name and revision; what is private is found only with HF_TOKEN" in outcome.message


def test_a_cut_connection_is_continued(hub: Hub, fetcher: Fetcher, files: dict[str, bytes]) -> None:
    hub.content.faults.append(Fault(LARGE, times=3, cut_after=100_000))
    assert fetcher.fetch(SOURCE, "--parallel", "1").status == 0
    assert read_folder(fetcher.folder / "tiny") == files
    asked = [r.headers.get("range") for r in hub.content.requests if LARGE in r.path]
    assert asked == [None, "bytes=100000-", "bytes=200000-"]
    large = len(files[LARGE]) + len(files[OTHER_LARGE]) + len(files["tokenizer.json"])
    assert hub.content.bytes_sent == large


def test_a_part_of_an_earlier_run_is_continued(
    hub: Hub, fetcher: Fetcher, files: dict[str, bytes]
) -> None:
    gone = Reply(status=503)
    hub.content.faults += [
        Fault(LARGE, cut_after=250_000),
        Fault(LARGE, times=99, reply=gone),
    ]
    outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (75, "Unreachable")
    assert not (fetcher.folder / "tiny").exists()
    hub.content.faults.clear()
    hub.content.bytes_sent = 0
    assert fetcher.fetch(SOURCE).status == 0
    assert read_folder(fetcher.folder / "tiny") == files
    assert hub.content.bytes_sent <= 50_000 + len(files[OTHER_LARGE]) + 4000


def test_a_branch_that_moves_does_not_mix_two_commits(
    hub: Hub, fetcher: Fetcher, files: dict[str, bytes]
) -> None:
    hub.content.faults.append(Fault(LARGE, times=99, reply=Reply(status=500)))
    assert fetcher.fetch(SOURCE).status == 75
    first = hub.repository.commit
    hub.repository.files["config.json"] = b"{}"
    outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (1, "NotFound")
    assert first in outcome.message


def test_a_changed_etag_begins_the_file_anew(hub: Hub, fetcher: Fetcher) -> None:
    hub.content.faults += [Fault(LARGE, cut_after=100_000)]
    old = hub.repository.files[LARGE]
    fetcher.policy = fetcher.policy.__class__(max_failures=1)
    assert fetcher.fetch(SOURCE).status == 75
    (state,) = (fetcher.folder / ".partial" / "tiny").glob(f"{LARGE}.part.state")
    state.write_text(json.dumps({"etag": '"another"', "synced": 0}))
    assert fetcher.fetch(SOURCE).status == 0
    assert (fetcher.folder / "tiny" / LARGE).read_bytes() == old
    asked = [r.headers for r in hub.content.requests if LARGE in r.path]
    assert asked[-1]["if-range"] == '"another"'


def test_wrong_bytes_are_fetched_again(hub: Hub, fetcher: Fetcher, files: dict[str, bytes]) -> None:
    hub.content.faults.append(Fault(LARGE, change=lambda body: b"X" + body[1:]))
    hub.api.faults.append(Fault("config.json", change=lambda body: body.upper()))
    assert fetcher.fetch(SOURCE).status == 0
    assert read_folder(fetcher.folder / "tiny") == files


def test_bytes_that_stay_wrong_fail_for_good(hub: Hub, fetcher: Fetcher) -> None:
    hub.content.faults.append(Fault(LARGE, times=99, change=lambda body: b"X" + body[1:]))
    outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (1, "VerifyFailed")
    assert LARGE in outcome.message
    assert "use another mirror or proxy" in outcome.message
    assert not (fetcher.folder / "tiny").exists()
    assert [LARGE in path for path in hub.content.paths()].count(True) == 3


def test_a_longer_answer_than_listed_is_not_written(hub: Hub, fetcher: Fetcher) -> None:
    hub.content.faults.append(Fault(LARGE, times=99, change=lambda body: body + b"surplus"))
    outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (1, "VerifyFailed")


def test_a_rate_limit_is_waited_for(hub: Hub, fetcher: Fetcher, files: dict[str, bytes]) -> None:
    slower = Reply(status=429, headers={"Retry-After": "0"})
    hub.api.faults += [Fault("/revision/", 2, reply=slower), Fault("/resolve/", 3, reply=slower)]
    assert fetcher.fetch(SOURCE).status == 0
    assert read_folder(fetcher.folder / "tiny") == files


def test_a_long_rate_limit_ends_the_run(hub: Hub, fetcher: Fetcher) -> None:
    slower = Reply(status=429, headers={"Retry-After": "3600"})
    hub.api.faults.append(Fault("/revision/", 9, reply=slower))
    outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (75, "RateLimited")
    assert outcome.message.endswith("the server asks to be left alone for 3600 s")
    assert len(hub.api.requests) == 1


def test_an_old_signed_address_is_asked_for_anew(hub: Hub, fetcher: Fetcher) -> None:
    hub.content.faults.append(Fault(LARGE, reply=Reply(status=403)))
    assert fetcher.fetch(SOURCE).status == 0


def test_a_server_without_ranges_is_read_from_the_start(
    hub: Hub, fetcher: Fetcher, files: dict[str, bytes]
) -> None:
    whole = Reply(body=files[LARGE])
    hub.content.faults += [Fault(LARGE, cut_after=9_000), Fault(LARGE, reply=whole)]
    assert fetcher.fetch(SOURCE).status == 0
    assert read_folder(fetcher.folder / "tiny") == files


def test_endless_redirects_end(hub: Hub, fetcher: Fetcher) -> None:
    again = Reply(status=302, headers={"Location": f"{hub.content.url}/blobs/again"})
    hub.content.faults.append(Fault("/again", times=99, reply=again))
    hub.api.faults.append(Fault("/resolve/", times=99, reply=again))
    outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (1, "InvalidSource")
    assert "redirects" in outcome.message


def test_nobody_there_is_unreachable(fetcher: Fetcher) -> None:
    fetcher.environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
    outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (75, "Unreachable")
    assert "127.0.0.1:9" in outcome.message


@pytest.mark.parametrize(
    "path",
    ["../evil.json", "/etc/evil.json", "a/../../b.json", ".mizzen/manifest.json", "a//b.json"],
)
def test_a_path_that_leads_out_is_refused(hub: Hub, fetcher: Fetcher, path: str) -> None:
    hub.repository.files[path] = b"{}"
    outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (1, "InvalidSource")
    assert "plain path" in outcome.message
    assert not list(fetcher.folder.parent.glob("**/evil.json"))


def test_pickles_are_refused_with_the_reason(hub: Hub, fetcher: Fetcher) -> None:
    hub.repository.files = {"config.json": b"{}", "pytorch_model.bin": b"p"}
    outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (1, "InvalidSource")
    assert "pickles" in outcome.message


def test_one_of_many_quantisations_is_chosen(hub: Hub, fetcher: Fetcher) -> None:
    hub.repository.files = {"a-Q4_0.gguf": b"4", "a-Q8_0.gguf": b"8", "config.json": b"{}"}
    del hub.repository.files["config.json"]
    outcome = fetcher.fetch(SOURCE)
    assert outcome.reason == "InvalidSource"
    assert "--allow one of them: a-Q4_0.gguf, a-Q8_0.gguf" in outcome.message
    assert fetcher.fetch(SOURCE, "--allow", "*.json", "*Q8*").status == 0
    assert read_folder(fetcher.folder / "tiny") == {"a-Q8_0.gguf": b"8"}


def test_patterns_that_leave_the_weights_out_are_named(hub: Hub, fetcher: Fetcher) -> None:
    outcome = fetcher.fetch(SOURCE, "--allow", "*.json")
    assert outcome.reason == "InvalidSource"
    assert "files that --allow *.json takes holds weights" in outcome.message
    assert "allow the weights too" in outcome.message


def test_more_than_is_allowed_or_fits_is_refused_before_it_comes(
    hub: Hub, fetcher: Fetcher
) -> None:
    outcome = fetcher.fetch(SOURCE, "--max-bytes", "1000")
    assert (outcome.status, outcome.reason) == (1, "NoSpace")
    assert "--max-bytes allows 1000" in outcome.message
    assert not hub.content.requests


def test_a_folder_of_something_else_is_left_alone(hub: Hub, fetcher: Fetcher) -> None:
    mine = fetcher.folder / "tiny"
    mine.mkdir(parents=True)
    assert fetcher.fetch(SOURCE).reason == "InvalidSource"
    assert fetcher.fetch(SOURCE, "--name", "other").status == 0
    outcome = fetcher.fetch("hf://org/tiny@v2", "--name", "other")
    assert outcome.reason == "InvalidSource"
    assert "holds hf://org/tiny@main" in outcome.message


def test_another_source_of_the_same_name_begins_anew(
    hub: Hub, fetcher: Fetcher, files: dict[str, bytes]
) -> None:
    hub.content.faults.append(Fault(LARGE, times=8, reply=Reply(status=500)))
    assert fetcher.fetch(SOURCE, "--allow", "*").status == 75
    assert fetcher.fetch(SOURCE).status == 0
    assert read_folder(fetcher.folder / "tiny") == files


def test_verify_finds_what_changed(
    hub: Hub, fetcher: Fetcher, tmp_path: Path, files: dict[str, bytes]
) -> None:
    assert fetcher.fetch(SOURCE).status == 0
    folder = fetcher.folder / "tiny"
    assert fetcher.run("--verify", str(folder)).status == 0
    (folder / LARGE).write_bytes(b"Y" + files[LARGE][1:])
    (folder / "more.py").write_text("1")
    assert fetcher.fetch(SOURCE).status == 0, "sizes are the same"
    outcome = fetcher.run("--verify", str(folder))
    assert (outcome.status, outcome.reason) == (1, "VerifyFailed")
    assert f"{LARGE} has other content" in outcome.message
    assert "more.py is not part of it" in outcome.message
    (folder / "config.json").unlink()
    outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (1, "VerifyFailed")
    assert "config.json is missing" in outcome.message


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--to", "x"], "SOURCE and --to DIR are needed"),
        (["ftp://a/b", "--to", "x"], "is not hf://"),
        (["hf://a/../b", "--to", "x"], "names no repository"),
        (["s3://b/p", "--to", "x", "--revision", "r"], "belongs to hf://"),
        (["hf://a/b@r", "--to", "x", "--revision", "s"], "differ"),
        (["hf://a/b", "--to", "x", "--parallel", "0"], "whole number from 1"),
        (["hf://a/b", "--to", "x", "--name", "../x"], "cannot be the folder's name"),
        (["--verify", "/nowhere"], "has no manifest"),
        (["hf://a/b", "--verify", "/nowhere"], "leave one of them out"),
    ],
)
def test_wrong_arguments_are_told_in_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments, read_fetch_environment({})) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("mizzen fetch-weights: InvalidSource: ")
    assert sentence in told
