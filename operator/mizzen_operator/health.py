"""Owns the answers to probes and scrapes: is this process alive, is it ready, why not; one port.

Does not own the facts: they are asked for at each probe. Runs in threads, so that it can tell when
the event loop hangs.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_BEAT_AGE_S = 20.0
MAX_QUEUE_STALL_S = 300.0
MAX_EXPECTATION_AGE_S = 120.0
MAX_SILENCE_S = 10.0
"""After which a connection that asks nothing gives its thread back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of the process at one moment; ages in seconds."""

    beat_age_s: float
    """Since the event loop last ran its heartbeat."""
    is_leader: bool
    is_synced: bool
    """Every kind was listed at least once."""
    stale_kinds: tuple[str, ...]
    """Kinds of which two LISTs in a row are missing."""
    silent_watches: Mapping[str, float]
    """Kinds whose watch brought nothing for too long, not even an end; seconds."""
    queue_stall_s: float
    """Since any reconcile began or ended, while there is work."""
    expectation_age_s: float
    """Of the oldest own write that the watch has not shown."""


def liveness_problems(facts: Facts) -> list[str]:
    """Why the process should be restarted; a standby is alive while its loop beats."""
    problems = []
    if facts.beat_age_s > MAX_BEAT_AGE_S:
        problems.append(f"the event loop has not run for {facts.beat_age_s:.0f} s")
    if facts.is_leader:
        if facts.stale_kinds:
            kinds = ", ".join(facts.stale_kinds)
            problems.append(f"two LISTs in a row are missing of: {kinds}")
        problems += (
            f"the watch of {kind} has been silent for {silence_s:.0f} s"
            for kind, silence_s in sorted(facts.silent_watches.items())
        )
        if facts.queue_stall_s > MAX_QUEUE_STALL_S:
            problems.append(f"no reconcile began or ended for {facts.queue_stall_s:.0f} s")
    return problems


def readiness_problems(facts: Facts) -> list[str]:
    """Why the process does not do its work; a standby is ready to take over."""
    problems = liveness_problems(facts)
    if facts.is_leader:
        if not facts.is_synced:
            problems.append("the first LISTs are not complete")
        if facts.expectation_age_s > MAX_EXPECTATION_AGE_S:
            age_s = facts.expectation_age_s
            problems.append(f"the watch has not shown an own write for {age_s:.0f} s")
    return problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the server asks at each request."""

    facts: Callable[[], Facts]
    metrics: Callable[[], bytes]


class HealthServer:
    """Serves /healthz, /readyz and /metrics until closed."""

    def __init__(
        self, *, host: str, port: int, answers: Answers, max_silence_s: float = MAX_SILENCE_S
    ) -> None:
        self._server = ThreadingHTTPServer((host, port), _handler(answers, max_silence_s))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(answers: Answers, max_silence_s: float) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "mizzen-operator"
        sys_version = ""
        timeout = max_silence_s

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._reply(200, answers.metrics(), "text/plain; version=0.0.4; charset=utf-8")
            elif path == "/healthz":
                self._reply_problems(liveness_problems(answers.facts()))
            elif path == "/readyz":
                self._reply_problems(readiness_problems(answers.facts()))
            else:
                self._reply(404, b"try /healthz, /readyz or /metrics\n", "text/plain")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited name
            """Probes are not worth a line each."""

        def _reply_problems(self, problems: list[str]) -> None:
            text = "\n".join(problems or ["ok"]) + "\n"
            self._reply(503 if problems else 200, text.encode(), "text/plain; charset=utf-8")

        def _reply(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
