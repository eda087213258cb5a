"""``mizzen support-bundle``: what is in the archive, what never is, its bounds, and the file."""

import asyncio
import json
import signal
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.operator.fake_cluster import DEPLOYMENT, POD, FakeCluster
from tests.operator.fake_operator import Clock, FakeOperator, started
from tests.operator.fake_reader import FakeReader, around, put_event

from mizzen_operator import __version__
from mizzen_operator.errors import ClusterError, ForbiddenError, UnavailableError
from mizzen_operator.support.bundle import BundleLimits
from mizzen_operator.support.verbs import support_bundle_verb

Capture = pytest.CaptureFixture[str]
HIDDEN = "s3cr3tV4lue"


def add_operator(operator: FakeOperator) -> None:
    metadata = {
        "name": "mizzen-operator",
        "namespace": "mizzen-system",
        "labels": {"app.kubernetes.io/name": "mizzen-operator"},
    }
    spec = {"containers": [{"name": "operator", "image": "operator:9"}]}
    for kind in (DEPLOYMENT, POD):
        operator.cluster.put(
            kind,
            {
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                "metadata": dict(metadata),
                "spec": spec,
            },
        )


def reader_of(operator: FakeOperator, text: str = "all is well\n") -> FakeReader:
    logs = {(ref.name, False): text for ref in operator.cluster.refs(POD)}
    return FakeReader(operator.cluster, logs=logs)


def bundle(operator: FakeOperator, reader: FakeReader, file: Path, *arguments: str) -> int:
    return support_bundle_verb(["-o", str(file), *arguments], around(reader, operator.clock))


def texts_of(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        found = {}
        for entry in archive.getmembers():
            top, _, path = entry.name.partition("/")
            assert top == "bundle"
            data = archive.extractfile(entry)
            assert data is not None
            found[path] = data.read().decode()
        return found


def contents(texts: dict[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(texts["contents.json"])
    return document


def test_everything_about_a_service_is_in_it(tmp_path: Path, capsys: Capture) -> None:
    operator = started()
    add_operator(operator)
    pod = next(item for item in operator.cluster.objects(POD) if "-w-" in item["metadata"]["name"])
    put_event(operator.cluster, pod, "Pulled", "image is there", type="Normal")
    file = tmp_path / "bundle.tar.gz"
    assert bundle(operator, reader_of(operator), file) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0].startswith("[  0%] reading")
    assert f"wrote {file}: " in err.splitlines()[-1]
    texts = texts_of(file)
    folder = "services/team/chat"
    pods = [ref.name for ref in operator.cluster.refs(POD) if ref.namespace == "team"]
    assert set(texts) == {
        "contents.json",
        "versions.json",
        "operator/objects.json",
        "operator/logs/mizzen-system/mizzen-operator.operator.log",
        *(
            f"{folder}/{name}"
            for name in ("status.txt", "explain.txt", "service.json", "objects.json", "events.json")
        ),
        *(f"{folder}/logs/{name}.mizzen.log" for name in pods),
    }
    assert "team/chat: ready for" in texts[f"{folder}/status.txt"]
    objects = json.loads(texts[f"{folder}/objects.json"])
    kinds = {item["kind"] for item in objects["items"]}
    assert {"StatefulSet", "Deployment", "Pod", "Service", "NetworkPolicy"} <= kinds
    assert "image is there" in texts[f"{folder}/events.json"]
    versions = json.loads(texts["versions.json"])
    assert versions == {
        "mizzen": __version__,
        "kubernetes": {"gitVersion": "v1.36.0"},
        "operator": {"mizzen-system/mizzen-operator": ["operator:9"]},
    }
    listed = contents(texts)
    assert set(listed["files"]) == set(texts) - {"contents.json"}
    assert listed["leftOut"] == []


def test_it_holds_no_secret_and_no_value_of_one(tmp_path: Path) -> None:
    env = [{"name": "HF_TOKEN", "value": HIDDEN}, {"name": "LEVEL", "value": "debug"}]
    operator = started(engine={"env": env, "args": ["--api-key", HIDDEN]})
    reader = reader_of(
        operator, f'{{"message": "token={HIDDEN}"}}\nAuthorization: Bearer {HIDDEN}\n'
    )
    pod = operator.cluster.objects(POD)[0]
    put_event(operator.cluster, pod, "Failed", f"password={HIDDEN}")
    file = tmp_path / "bundle.tar.gz"
    assert bundle(operator, reader, file) == 0
    texts = texts_of(file)
    assert [path for path, text in texts.items() if HIDDEN in text] == []
    kinds = [
        item["kind"]
        for path, text in texts.items()
        if path.endswith("objects.json")
        for item in json.loads(text)["items"]
    ]
    assert "Secret" not in kinds
    pods = json.loads(texts["services/team/chat/objects.json"])["items"]
    variables = [
        (item["name"], item.get("value"))
        for obj in pods
        if obj["kind"] == "Pod"
        for item in obj["spec"]["containers"][0]["env"]
    ]
    assert ("HF_TOKEN", "REDACTED") in variables
    assert ("LEVEL", "REDACTED") in variables, "it is not ours: nobody knows what it holds"
    assert ("MIZZEN_ROLE", "tokenizer") in variables
    assert "chat-curve" in texts["services/team/chat/objects.json"]


def test_a_restarted_container_gives_both_its_logs(tmp_path: Path) -> None:
    operator = started()
    ref = next(ref for ref in operator.cluster.refs(POD) if "-w-" in ref.name)
    operator.cluster.edit(
        ref,
        lambda pod: pod["status"]["containerStatuses"][0].update(name="mizzen", restartCount=1),
    )
    reader = reader_of(operator)
    reader.logs[ref.name, True] = "it ended here\n"
    file = tmp_path / "bundle.tar.gz"
    assert bundle(operator, reader, file) == 0
    texts = texts_of(file)
    path = f"services/team/chat/logs/{ref.name}.mizzen.previous.log"
    assert texts[path] == "it ended here\n"


def test_logs_are_bounded_and_keep_their_end(tmp_path: Path) -> None:
    operator = started()
    text = "".join(f"{number:07} {'x' * 1000}\n" for number in range(1500))
    reader = reader_of(operator, text)
    file = tmp_path / "bundle.tar.gz"
    assert bundle(operator, reader, file) == 0
    texts = texts_of(file)
    logs = [text for path, text in texts.items() if path.endswith(".log")]
    assert all(0 <= BundleLimits().log_bytes - len(log) < 1010 for log in logs)
    assert all(log.startswith("000") and "\n0001499 " in log for log in logs)
    assert all(
        "only its last 1.0 MiB are here" in item["why"] for item in contents(texts)["leftOut"][1:]
    )
    assert {part.tail_lines for part in reader.log_parts} == {2000}


def test_fewer_lines_can_be_asked_for(tmp_path: Path) -> None:
    operator = started()
    file = tmp_path / "bundle.tar.gz"
    reader = reader_of(operator, "a\nb\nc\n")
    assert bundle(operator, reader, file, "--log-lines", "2") == 0
    logs = [text for path, text in texts_of(file).items() if path.endswith(".log")]
    assert set(logs) == {"b\nc\n"}


def test_the_whole_is_bounded_and_says_what_is_missing(tmp_path: Path, capsys: Capture) -> None:
    operator = started()
    line = f"{'x' * 4000}\n"
    file = tmp_path / "bundle.tar.gz"
    assert bundle(operator, reader_of(operator, line * 250), file, "--max-mib", "2") == 0
    texts = texts_of(file)
    assert sum(map(len, texts.values())) < (2 << 20) + 10_000
    missing = [item for item in contents(texts)["leftOut"] if "the bundle is full" in item["why"]]
    assert missing
    assert "services/team/chat/status.txt" in texts
    assert "left out or cut" in capsys.readouterr().err


def test_what_cannot_be_read_is_named_and_the_rest_is_there(tmp_path: Path) -> None:
    operator = started()
    reader = FakeReader(operator.cluster, refusals={"events": ForbiddenError("403")})
    file = tmp_path / "bundle.tar.gz"
    assert bundle(operator, reader, file) == 0
    texts = texts_of(file)
    left_out = {item["what"]: item["why"] for item in contents(texts)["leftOut"]}
    assert "events may not be read" in left_out["objects"]
    assert "nothing labelled" in left_out["operator"]
    logs = [what for what in left_out if what.endswith(".log")]
    assert len(logs) == len(operator.cluster.refs(POD))
    assert all("waiting to start" in left_out[path] for path in logs)


def test_the_file_is_its_owners_only_and_never_written_over(
    tmp_path: Path, capsys: Capture
) -> None:
    operator = started()
    file = tmp_path / "bundle.tar.gz"
    assert bundle(operator, reader_of(operator), file) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    capsys.readouterr()
    assert bundle(operator, reader_of(operator), file) == 2
    assert capsys.readouterr().err.endswith(f"{file} exists: give another name with -o\n")
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle.tar.gz"]


def test_a_failure_on_the_way_leaves_no_file(tmp_path: Path, capsys: Capture) -> None:
    operator = started()
    reader = FakeReader(operator.cluster, refusals={"pods": UnavailableError("gone")})
    assert bundle(operator, reader, tmp_path / "bundle.tar.gz") == 2
    assert list(tmp_path.iterdir()) == []
    assert "mizzen support-bundle: " in capsys.readouterr().err
    assert bundle(operator, reader, tmp_path / "no" / "bundle.tar.gz") == 2
    assert "cannot write" in capsys.readouterr().err


def test_without_a_name_it_is_called_by_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = started()
    monkeypatch.chdir(tmp_path)
    assert support_bundle_verb([], around(reader_of(operator), operator.clock)) == 0
    (file,) = tmp_path.iterdir()
    assert file.name == f"mizzen-support-{operator.clock.now():%Y%m%d-%H%M%S}.tar.gz"


@pytest.mark.parametrize("number", ["0", "-1", "x", "99999999"])
def test_bounds_must_be_numbers(number: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        support_bundle_verb(["--max-mib", number])
    assert ended.value.code == 2
    assert "is not a whole number from 1 to 1000000" in capsys.readouterr().err


def test_without_a_service_there_is_still_the_operator(tmp_path: Path) -> None:
    operator = FakeOperator(FakeCluster(), Clock())
    add_operator(operator)
    reader = reader_of(operator)
    file = tmp_path / "bundle.tar.gz"
    assert bundle(operator, reader, file, "--operator-namespace", "mizzen-system") == 0
    texts = texts_of(file)
    assert "operator/logs/mizzen-system/mizzen-operator.operator.log" in texts
    assert contents(texts)["leftOut"] == [{"what": "services", "why": "there is none in team"}]


def test_an_operator_that_may_not_be_seen_is_named(tmp_path: Path) -> None:
    operator = FakeOperator(FakeCluster(), Clock())
    refusals: dict[str, ClusterError] = {"deployments": ForbiddenError("not allowed (HTTP 403)")}
    reader = FakeReader(operator.cluster, refusals=refusals)
    file = tmp_path / "bundle.tar.gz"
    assert bundle(operator, reader, file) == 0
    left_out = {item["what"]: item["why"] for item in contents(texts_of(file))["leftOut"]}
    assert left_out["operator"] == "not allowed (HTTP 403); give --operator-namespace"


def test_an_interrupted_bundle_leaves_no_file(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = started()
    reader = reader_of(operator)

    async def interrupt(*_: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)

    monkeypatch.setattr(reader, "pod_log", interrupt)
    # A shell lets what it starts in the background ignore this signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert bundle(operator, reader, tmp_path / "bundle.tar.gz") == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.endswith("mizzen support-bundle: interrupted\n")
