"""What a pod says about itself, and what its admin port takes."""

import asyncio
import io
import json
from dataclasses import dataclass, field

import httpx
import msgspec
import pytest

from mizzen_worker.contracts.admin_answers import ServerInfo
from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.messages import ControlVerb, Fact, Reply
from mizzen_worker.ipc.parent_link import Report
from mizzen_worker.supervision.admin import admin_app
from mizzen_worker.supervision.health import (
    PodHealth,
    ProcessView,
    SilenceLimits,
    pod_health,
    stuck_processes,
)
from mizzen_worker.supervision.pod_control import PodControl
from mizzen_worker.supervision.progress import Announcer, Progress

LIMITS = SilenceLimits(running_s=10, loading_s=100, lifeless_s=3)


def _process(
    state: str = "ready",
    *,
    is_running: bool = True,
    silent_s: float = 0,
    is_restarted: bool = False,
    lifeless_s: float = 0,
) -> ProcessView:
    return ProcessView(
        name="rank",
        is_running=is_running,
        state=state,
        silent_s=silent_s,
        is_restarted=is_restarted,
        lifeless_s=lifeless_s,
    )


def _health(
    *processes: ProcessView, is_draining: bool = False, was_started: bool = False
) -> PodHealth:
    return pod_health(processes, limits=LIMITS, is_draining=is_draining, was_started=was_started)


@pytest.mark.parametrize(
    ("health", "not_live", "not_ready", "not_started"),
    [
        (_health(_process()), None, None, None),
        (_health(_process("loading", silent_s=99)), None, "rank is loading", "rank is loading"),
        (
            _health(_process("loading", silent_s=101)),
            "silent for 101 s",
            "rank is loading",
            "rank is loading",
        ),
        (_health(_process("waiting")), None, "rank is waiting", None),
        (_health(_process("failed")), None, "rank is failed", "rank is failed"),
        (_health(_process(silent_s=11)), "silent for 11 s", "silent for 11 s", None),
        (
            _health(_process("loading", lifeless_s=4)),
            "rank has shown no life for 4 s",
            "rank is loading",
            "rank is loading",
        ),
        (_health(_process(is_running=False)), "not running", "not running", "not running"),
        (
            _health(_process(is_running=False, is_restarted=True), was_started=True),
            None,
            "not running",
            None,
        ),
        (_health(_process(is_running=False), is_draining=True), None, "draining", "not running"),
        (_health(_process(), is_draining=True), None, "the pod is draining", None),
        (_health(_process(), _process("loading"), was_started=True), None, "is loading", None),
    ],
)
def test_health_table(
    health: PodHealth, not_live: str | None, not_ready: str | None, not_started: str | None
) -> None:
    found = (health.why_not_live, health.why_not_ready, health.why_not_started)
    for reason, expected in zip(found, (not_live, not_ready, not_started), strict=True):
        assert (reason is None) == (expected is None), found
        assert (expected or "") in (reason or "")


@pytest.mark.parametrize(
    ("process", "excess"),
    [
        (_process(silent_s=11), "has been silent for 11 s"),
        (_process("loading", silent_s=11), None),
        (_process("loading", silent_s=101), "has been silent for 101 s"),
        (_process("starting", silent_s=101), "has been silent for 101 s"),
        (_process("loading", silent_s=101, is_running=False), None),
        (_process("failed", silent_s=6), "has been silent for 6 s"),
        (_process(silent_s=9, lifeless_s=3), None),
        (_process(silent_s=9, lifeless_s=4), "has shown no life for 4 s"),
        (_process("loading", lifeless_s=4), "has shown no life for 4 s"),
        (_process(lifeless_s=4, is_running=False), None),
    ],
)
def test_what_stands_still_is_stuck_also_before_it_is_ready(
    process: ProcessView, excess: str | None
) -> None:
    assert stuck_processes([process], limits=LIMITS) == ({"rank": excess} if excess else {})


@dataclass
class _Pod:
    reason: str | None = None
    drains: list[tuple[DrainMode, float, float]] = field(default_factory=list)

    def health(self) -> PodHealth:
        return PodHealth(why_not_live=None, why_not_ready=self.reason, why_not_started=self.reason)

    def metrics(self, process: str | None) -> str:
        return f"mizzen_x 1 {process}\n"

    async def drain(self, mode: DrainMode, deadline_s: float, *, settle_s: float = 0.0) -> None:
        self.drains.append((mode, deadline_s, settle_s))


class _Processes:
    """Two fronts and a rank, one front of which says nothing."""

    def process_ids(self) -> dict[str, int | None]:
        return {"front-0": 1, "front-1": None, "rank": 2}

    def health(self) -> PodHealth:
        return _Pod("rank is loading").health()

    async def ask(
        self, kind: str, verb: ControlVerb, arguments: dict[str, str]
    ) -> dict[str, Reply | None]:
        if kind == "rank":
            return {"rank": _reply(freed_kv_tokens=32)}
        if kind == "controller":
            return {}
        ended = {"live": 1, None: 4}.get(arguments.get("request_id"), 0)
        sizes = {"kv_tokens_total": 512, "context_length": 256}
        return {"front-0": _reply(ended=ended, live_requests=3, **sizes), "front-1": None}


def _reply(**facts: Fact) -> Reply:
    return Reply(control_id=1, is_ok=True, message="done", facts=facts)


def _control() -> PodControl:
    return PodControl(
        processes=_Processes(), has_fronts=True, has_ranks=True, served_name="tiny", started_at=7
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "facts"),
    [
        ("/abort_request", '{"rid": "live"}', 503, {"num_aborted": 1, "unanswered": ["front-1"]}),
        ("/abort_request", '{"rid": "gone"}', 503, {"num_aborted": 0, "unanswered": ["front-1"]}),
        (
            "/abort_request",
            '{"abort_all": true}',
            503,
            {"num_aborted": 4, "unanswered": ["front-1"]},
        ),
        ("/abort_request", '{"rid": "live", "abort_all": true}', 400, {}),
        ("/abort_request", "{}", 400, {}),
        ("/flush_cache", "", 200, {"freed_kv_tokens": 32, "flushed": 1, "failed": {}}),
    ],
)
def test_control_routes_say_what_happened(
    path: str, body: str, status: int, facts: dict[str, object]
) -> None:
    async def scenario() -> None:
        transport = httpx.ASGITransport(
            admin_app(_Pod(), _control(), default_mode=DrainMode.HANDBACK, default_deadline_s=7)
        )  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            answer = await client.post(path, content=body)
            assert answer.status_code == status, answer.text
            assert facts.items() <= answer.json().items()
            info = (await client.get("/server_info")).json()
            assert msgspec.convert(info, ServerInfo).status == "not ready"
            assert (info["served_model_name"], info["live_requests"]) == ("tiny", 3)
            assert (info["max_total_num_tokens"], info["context_length"]) == (512, 256)
            assert info["processes"]["rank"] == {"pid": 2, "freed_kv_tokens": 32}
            assert info["processes"]["front-1"] == {"pid": None, "error": "it did not answer"}
            assert (await client.get(path)).status_code == 405

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/health", 200, "ok"),
        ("GET", "/health/ready", 503, "rank is loading"),
        ("GET", "/health/startup", 503, "rank is loading"),
        ("GET", "/metrics", 200, "mizzen_x 1 None"),
        ("GET", "/metrics?process=front", 200, "mizzen_x 1 front"),
        ("GET", "/nothing", 404, "/nothing is no route of the admin port; it has /abort_request, "),
        ("POST", "/nothing", 404, "is no route"),
        ("GET", "/drain", 405, "POST only"),
        ("POST", "/health", 405, "GET only"),
        ("POST", "/drain?mode=now", 400, "mode is 'now'; it must be handback or finish"),
        ("POST", "/drain?deadline_s=-1", 400, "deadline_s is '-1'"),
        ("POST", "/drain?deadline_s=nan", 400, "deadline_s is 'nan'"),
        ("POST", "/drain?mode=finish&deadline_s=3", 200, "drained"),
        ("POST", "/drain", 200, "drained"),
    ],
)
def test_admin_port(method: str, path: str, status: int, text: str) -> None:
    async def scenario() -> None:
        pod = _Pod("rank is loading")
        transport = httpx.ASGITransport(
            admin_app(pod, _control(), default_mode=DrainMode.HANDBACK, default_deadline_s=7)
        )  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            answer = await client.request(method, path)
        assert answer.status_code == status
        assert text in answer.text
        if "finish" in path:
            assert pod.drains == [(DrainMode.FINISH, 3.0, 5.0)]
        elif status == 200 and path == "/drain":
            assert pod.drains == [(DrainMode.HANDBACK, 7.0, 5.0)]
        else:
            assert pod.drains == []

    asyncio.run(scenario())


@pytest.mark.parametrize(("host", "status"), [("10.0.0.7", 403), ("::1", 200)])
def test_nobody_else_may_drain_the_pod(host: str, status: int) -> None:
    async def scenario() -> None:
        pod = _Pod(None)
        transport = httpx.ASGITransport(
            admin_app(pod, _control(), default_mode=DrainMode.HANDBACK, default_deadline_s=7),  # type: ignore[arg-type]
            client=(host, 1234),
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            assert (await client.post("/drain")).status_code == status
            assert (await client.post("/flush_cache")).status_code == status
            assert (await client.get("/health")).status_code == 200
        assert bool(pod.drains) == (status == 200)

    asyncio.run(scenario())


def test_progress_is_a_bar_on_a_terminal() -> None:
    out = io.StringIO()
    progress = Progress(out=out, is_terminal=True)
    progress.note("rank", Report(state="loading", num_beats=0))
    assert out.getvalue() == ""
    for beat, share in enumerate((0.0, 0.5, 1.0)):
        progress.note("rank", _loading("loading weights", beat, share))
    progress.note("rank", _loading("capturing graphs", 3, 0.5))
    progress.note("rank", Report(state="ready", num_beats=1))
    weights, graphs, end = out.getvalue().split("\n")
    assert weights.endswith("] 100%")
    assert "loading weights [" in weights
    assert " 50%" in weights
    assert graphs.startswith("\rcapturing graphs [")
    assert end == ""


def test_of_several_ranks_the_slowest_is_shown() -> None:
    out = io.StringIO()
    progress = Progress(out=out, is_terminal=True)
    progress.note("rank-0", _loading("capturing graphs", 9, 0.5))
    out.truncate(0)
    progress.note("rank-1", _loading("loading weights", 2, 0.25))
    assert out.getvalue().endswith(" 25%")
    assert "loading weights" in out.getvalue()


def _loading(phase: str, num_beats: int, share: float) -> Report:
    return Report(state="loading", num_beats=num_beats, progress=share, detail=phase)


def test_url_and_a_line_that_works_are_announced_once() -> None:
    out = io.StringIO()
    announcer = Announcer(served_name="m", out=out)
    announcer.note(Report(state="waiting", num_beats=1, detail="0.0.0.0 80"))
    assert out.getvalue() == ""
    for _ in range(2):
        announcer.note(Report(state="ready", num_beats=1, detail="0.0.0.0 80"))
    text = out.getvalue()
    assert text.count("m is served at http://127.0.0.1:80/v1") == 1
    body = text.split("-d '")[1].rstrip("'\n")
    assert json.loads(body)["model"] == "m"
    assert json.loads(body)["temperature"] == 0
