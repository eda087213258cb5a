import socket
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

from mizzen_operator.health import (
    Answers,
    Facts,
    HealthServer,
    liveness_problems,
    readiness_problems,
)

WELL = Facts(
    beat_age_s=0.5,
    is_leader=True,
    is_synced=True,
    stale_kinds=(),
    silent_watches={},
    queue_stall_s=0.0,
    expectation_age_s=0.0,
)


@pytest.mark.parametrize(
    ("change", "live", "ready"),
    [
        ({}, "", ""),
        ({"beat_age_s": 60.0}, "event loop has not run for 60 s", "event loop"),
        ({"stale_kinds": ("pods",)}, "missing of: pods", "missing of: pods"),
        ({"silent_watches": {"pods": 130.4}}, "watch of pods has been silent for 130 s", "pods"),
        ({"queue_stall_s": 900.0}, "for 900 s", "for 900 s"),
        ({"is_synced": False}, "", "first LISTs"),
        ({"expectation_age_s": 500.0}, "", "has not shown an own write for 500 s"),
        ({"is_leader": False, "is_synced": False, "stale_kinds": ("pods",)}, "", ""),
        ({"is_leader": False, "silent_watches": {"pods": 130.4}}, "", ""),
    ],
)
def test_problems_are_named(change, live: str, ready: str) -> None:
    facts = replace(WELL, **change)
    for problems, expected in (
        (liveness_problems(facts), live),
        (readiness_problems(facts), ready),
    ):
        assert bool(problems) == bool(expected)
        assert expected in "\n".join(problems)


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_server_answers_from_the_facts_of_the_moment() -> None:
    facts = WELL
    server = HealthServer(
        host="127.0.0.1", port=0, answers=Answers(facts=lambda: facts, metrics=lambda: b"m 1\n")
    )
    try:
        assert ask(server.port, "/healthz") == (200, "ok\n")
        assert ask(server.port, "/metrics") == (200, "m 1\n")
        assert ask(server.port, "/other")[0] == 404
        facts = replace(WELL, is_synced=False)
        assert ask(server.port, "/readyz") == (503, "the first LISTs are not complete\n")
        assert ask(server.port, "/healthz")[0] == 200
    finally:
        server.close()


def test_a_connection_that_asks_nothing_is_closed() -> None:
    answers = Answers(facts=lambda: WELL, metrics=lambda: b"")
    server = HealthServer(host="127.0.0.1", port=0, answers=answers, max_silence_s=0.05)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as silent:
            assert silent.recv(1) == b""
    finally:
        server.close()
