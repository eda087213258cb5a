"""``mizzen check-install`` over fakes: problems are named, waiting ends, addresses are checked."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.fake_cluster import FakeCluster
from tests.operator.fake_operator import Clock
from tests.operator.fake_reader import FakeReader
from tests.operator.spec.test_served import as_read, document, properties

from mizzen_operator.check_install import Surroundings, _probe, check_install
from mizzen_operator.errors import ForbiddenError
from mizzen_operator.health import Answers, Facts, HealthServer
from mizzen_operator.spec.crd import crd
from mizzen_operator.spec.scaler_crd import scaler_crd
from mizzen_operator.support.connection import ConnectError, Connection, Target

Capture = pytest.CaptureFixture[str]
URL = "http://operator:8080"


def outside(reader: FakeReader, *, answers: list[str] | None = None) -> Surroundings:
    clock = Clock()
    left = answers if answers is not None else [""]

    def probe(url: str) -> str:
        assert url == f"{URL}/readyz"
        return left.pop(0) if len(left) > 1 else left[0]

    def sleep(seconds: float) -> None:
        clock.now_s += seconds

    connection = Connection(reader=reader, namespace="a", server="server", close=lambda: None)
    return Surroundings(connect=lambda target: connection, probe=probe, clock=clock, sleep=sleep)


@pytest.fixture
def reader() -> FakeReader:
    return FakeReader(cluster=FakeCluster(), openapi=document(crd(), scaler_crd()))


def test_all_is_well(reader: FakeReader, capsys: Capture) -> None:
    assert check_install(["--operator", f"{URL}/"], outside(reader)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "the definitions are those of this release",
        "the operator is ready",
    ]
    assert check_install([], outside(reader, answers=["not asked"])) == 0


def test_it_waits_for_the_operator_and_gives_up(reader: FakeReader, capsys: Capture) -> None:
    answers = ["no answer", "the first LISTs are not complete", ""]
    assert check_install(["--operator", URL], outside(reader, answers=answers)) == 0
    assert check_install(["--operator", URL], outside(reader, answers=["it hangs"])) == 1
    assert f"{URL} is not ready after 60 s: it hangs" in capsys.readouterr().out


def test_older_definitions_are_wrong(reader: FakeReader, capsys: Capture) -> None:
    old = as_read(crd())
    del properties(old, "spec")["paused"]
    reader.openapi = document(old)
    assert check_install([], outside(reader)) == 1
    out = capsys.readouterr().out
    assert "wrong: the cluster does not serve InferenceRoleScaler: apply" in out
    assert "they lack InferenceService spec.paused" in out


def test_without_a_connection_or_an_answer_it_cannot_tell(
    reader: FakeReader, capsys: Capture
) -> None:
    def refuse(target: Target) -> Any:
        raise ConnectError("no kubeconfig")

    assert check_install([], replace(outside(reader), connect=refuse)) == 2
    reader.refusals["openapi"] = ForbiddenError("403")
    assert check_install([], outside(reader)) == 2
    assert "no kubeconfig" in capsys.readouterr().err


@pytest.fixture
def health() -> Iterator[HealthServer]:
    facts = Facts(
        beat_age_s=0,
        is_leader=True,
        is_synced=False,
        stale_kinds=(),
        silent_watches={},
        queue_stall_s=0,
        expectation_age_s=0,
    )
    server = HealthServer(
        host="127.0.0.1", port=0, answers=Answers(facts=lambda: facts, metrics=lambda: b"")
    )
    yield server
    server.close()


def test_the_probe_tells_what_the_operator_says(health: HealthServer) -> None:
    base = f"http://127.0.0.1:{health.port}"
    assert _probe(f"{base}/healthz") == ""
    assert _probe(f"{base}/readyz") == "the first LISTs are not complete"
    assert _probe("http://127.0.0.1:1/readyz").startswith("no answer")
    assert "write http://HOST:PORT" in _probe("file:///etc/passwd")
