"""The Job that the operator renders is a command line that the downloader takes, and its words
are those that the operator reads."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.operator.documents import resolved
from tests.operator.spec.rule_examples import SOURCES
from tests.worker.fetch.hub_server import TOKEN, hub_with

import mizzen_operator.worker_contract as operator_side
from mizzen_operator.planner.fetch_report import TOLD_BY_JOB, WeightsReason, report_of
from mizzen_operator.render.pod import model_path
from mizzen_operator.render.weights import fetch_job
from mizzen_worker.config.env import read_fetch_environment
from mizzen_worker.contracts.fetch import EXIT_FAILED, EXIT_TRY_AGAIN, FetchReason
from mizzen_worker.fetch.command import run
from mizzen_worker.fetch.retry import RetryPolicy

FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"x" * 3000}
DIGEST = f"sha256:{'0' * 64}"


def container_of(source: str, *, pinned: str = "", **fields: Any) -> dict[str, Any]:
    given = {"pvc": None, source: {**SOURCES[source], **fields}}
    service = resolved(model={"source": given, "cache": {"size": "1Gi"}})
    fetched, cache = service.spec.model.source.fetched, service.spec.model.cache
    assert fetched is not None
    assert cache is not None
    (container,) = fetch_job(service, fetched, cache, pinned)["spec"]["template"]["spec"][
        "containers"
    ]
    found: dict[str, Any] = container
    return found


def test_reasons_and_exit_codes_are_those_of_the_downloader() -> None:
    theirs = {reason.value for reason in FetchReason} - {"Done", "Interrupted"}
    assert {reason.value for reason in TOLD_BY_JOB} == theirs
    assert operator_side.FETCH_EXIT_FAILED == EXIT_FAILED
    assert operator_side.FETCH_EXIT_TRY_AGAIN == EXIT_TRY_AGAIN


@pytest.mark.parametrize("source", SOURCES)
def test_variables_are_those_that_the_downloader_reads(source: str) -> None:
    credentials: dict[str, Any] = {"credentialsSecretRef": {"name": "x"}}
    if source == "huggingFace":
        credentials = {"tokenSecretRef": {"name": "x", "key": "y"}, "endpoint": "https://hub"}
    if source == "s3":
        credentials |= {"endpoint": "https://s3", "region": "here"}
    nothing = read_fetch_environment({})
    for variable in container_of(source, **credentials)["env"]:
        if variable["name"] != "HOME":
            read = read_fetch_environment({variable["name"]: "https://given"})
            assert read != nothing, variable["name"]


@pytest.mark.parametrize("pinned", ["", "commit"])
def test_a_job_of_a_hub_ends_with_what_the_operator_reads(tmp_path: Path, pinned: str) -> None:
    with hub_with(FILES) as hub:
        commit = hub.repository.commit
        fields: dict[str, Any] = {
            "repository": hub.repository.name,
            "files": ["*.json", "model*"],
            "endpoint": hub.api.url,
        }
        container = container_of("huggingFace", pinned=pinned and commit, **fields)
        assert container["command"] == ["mizzen", "fetch-weights"]
        report = ended(container, tmp_path, {"HF_ENDPOINT": hub.api.url, "HF_TOKEN": TOKEN})
    assert report.revision == commit
    assert report.size_bytes == sum(map(len, FILES.values()))
    given = {"pvc": None, "huggingFace": {**SOURCES["huggingFace"], **fields}}
    service = resolved(model={"source": given, "cache": {"size": "1Gi"}})
    folder = tmp_path / model_path(service).removeprefix("/models/")
    assert {path.name for path in folder.iterdir()} >= set(FILES)


def test_what_is_not_there_is_told_in_a_word_that_the_operator_knows(tmp_path: Path) -> None:
    with hub_with(FILES) as hub:
        repository = hub.repository.name
        fields = {"repository": repository, "revision": "gone", "endpoint": hub.api.url}
        container = container_of("huggingFace", **fields)
        environment = {"HF_ENDPOINT": hub.api.url, "HF_TOKEN": TOKEN}
        report = ended(container, tmp_path, environment, code=EXIT_FAILED)
    assert report.reason is WeightsReason.NOT_FOUND
    assert report.sentence


@pytest.mark.parametrize(
    ("source", "pinned"), [("s3", ""), ("s3", "etags"), ("oci", ""), ("oci", DIGEST)]
)
def test_other_sources_are_understood(tmp_path: Path, source: str, pinned: str) -> None:
    unreachable = {"endpoint": "http://127.0.0.1:9"} if source == "s3" else {}
    image = {"image": "127.0.0.1:9/team/model:1"} if source == "oci" else {}
    container = container_of(source, pinned=pinned, **unreachable, **image)
    container["args"] += ["--parallel", "1"]
    environment = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    report = ended(container, tmp_path, environment, code=EXIT_TRY_AGAIN)
    assert report.reason is WeightsReason.UNREACHABLE


def ended(
    container: dict[str, Any], folder: Path, environment: dict[str, str], code: int = 0
) -> Any:
    """Run what the Job runs, but into this folder and without its metrics; what it reports."""
    args = list(container["args"])
    args[args.index("--to") + 1] = str(folder)
    at = args.index("--metrics-port")
    del args[at : at + 2]
    message = folder / "termination"
    policy = RetryPolicy(max_failures=1)
    status = run(
        ["--termination-file", str(message), *args], read_fetch_environment(environment), policy
    )
    text = message.read_text()
    assert status == code, text
    assert set(json.loads(text)) >= {"reason", "message"}
    return report_of(text)
