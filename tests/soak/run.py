"""Owns a soak from start to verdict: server, kills, counters; judges no single answer."""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from tests.soak.users import Tally, User, read_answer
from tests.soak.workload import Kind, make_catalogue, make_wish
from tests.worker.byte_vocabulary import VOCAB_SIZE
from tests.worker.launched import Launched, free_port, write_tiny_model

from mizzen_worker.observability import metric_names

_SMALL_POOL = ("--kv-tokens", "1024", "--max-running-requests", "24", "--max-chunk-tokens", "64")
_LARGE_POOL = ("--kv-tokens", "16384")
_RANK = "scheduler"
_MOMENT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """How long, how hard, and what must have happened at least ``least`` times each."""

    duration_s: float
    num_users: int = 24
    num_kinds: int = 60
    kill_every_s: float = 30.0
    least: int = 20
    seed: int = 1
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What happened; ``faults`` empty means that every promise was kept."""

    counts: dict[str, int]
    faults: tuple[str, ...]

    def lines(self) -> list[str]:
        """Say it to a person."""
        shown = [f"{name:>28} {count:>9,}" for name, count in self.counts.items()]
        return shown + [f"FAULT {fault}" for fault in self.faults[:40]]


def run_soak(options: SoakOptions) -> Verdict:
    """Run it; takes ``duration_s`` and about half a minute more."""
    rng = np.random.default_rng(options.seed)
    catalogue = make_catalogue(rng, options.num_kinds, VOCAB_SIZE)
    with tempfile.TemporaryDirectory(prefix="mizzen-soak-") as folder:
        model, log = Path(folder) / "tiny", Path(folder) / "log"
        model.mkdir()
        write_tiny_model(model)
        with _serve(model, _LARGE_POOL, options.flags, log) as (calm, url):
            calm.until_ready()
            answers = asyncio.run(_answers(url, catalogue))
        with _serve(model, _SMALL_POOL, options.flags, log) as (served, url):
            served.until_ready()
            verdict = asyncio.run(_harm(options, served, url, catalogue, answers, rng))
        if verdict.faults:
            kept = Path("out/soak.log")
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(log.read_bytes())
    return verdict


async def _answers(url: str, catalogue: list[Kind]) -> list[tuple[int, ...]]:
    """Ask a server that is left in peace, one request at a time."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        return [await read_answer(client, kind) for kind in catalogue]


class _serve:  # noqa: N801 - a context manager, used like a function
    """A server and its URL."""

    def __init__(self, model: Path, pool: Sequence[str], flags: Sequence[str], log: Path) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        command = ("serve", str(model), "--http-port", str(port), "--deterministic", *pool, *flags)
        self._served = Launched(*command, log=log, admin_port=free_port())

    def __enter__(self) -> tuple[Launched, str]:
        return self._served.__enter__(), self._url

    def __exit__(self, *error: object) -> None:
        self._served.__exit__(*error)  # type: ignore[arg-type]


async def _harm(
    options: SoakOptions,
    served: Launched,
    url: str,
    catalogue: list[Kind],
    answers: list[tuple[int, ...]],
    rng: np.random.Generator,
) -> Verdict:
    tally = Tally()
    ends_at_s = time.monotonic() + options.duration_s
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client,
        httpx.AsyncClient(base_url=served.admin, timeout=30) as admin,
    ):
        user = User(client=client, admin=admin, catalogue=catalogue, answers=answers, tally=tally)
        counter = iter(range(1 << 60))

        async def one_user() -> None:
            while time.monotonic() < ends_at_s:
                await user.ask(make_wish(rng, len(catalogue)), f"soak-{next(counter)}")

        killer = asyncio.create_task(_kill_now_and_then(served, admin, options.kill_every_s))
        await asyncio.gather(*(one_user() for _ in range(options.num_users)))
        killer.cancel()
        await asyncio.gather(killer, return_exceptions=True)
        counts = await _until_idle(admin, tally)
    counts |= {f"ended: {ending}": count for ending, count in sorted(tally.endings.items())}
    counts["requests"] = tally.endings.total()
    counts["tokens judged"] = tally.tokens
    faults = list(tally.faults)
    faults += [
        f"{name}: {counts[name]}, wanted at least {options.least}"
        for name in ("retractions", "resumes", "aborts", "deadlines", "disconnects")
        if counts[name] < options.least
    ]
    return Verdict(counts=counts, faults=tuple(faults))


async def _kill_now_and_then(served: Launched, admin: httpx.AsyncClient, every_s: float) -> None:
    """Kill one rank after the other with SIGKILL, each when it has worked for a moment.

    A request that three workers in a row died under is given up on purpose, so a rank that is
    killed before it has answered anything would show nothing.
    """
    turn = 0
    while True:
        await asyncio.sleep(every_s)
        while (await admin.get("/health/ready")).status_code != 200:  # noqa: ASYNC110 - of others
            await asyncio.sleep(0.2)
        await asyncio.sleep(_MOMENT_S)
        ranks = served.pids_of(_RANK)
        if ranks:
            os.kill(ranks[turn % len(ranks)], signal.SIGKILL)
            turn += 1


async def _until_idle(admin: httpx.AsyncClient, tally: Tally) -> dict[str, int]:
    """Wait until nothing is held; what stays held is a leak."""
    held = (
        metric_names.RUNNING_REQUESTS.name,
        metric_names.QUEUED_REQUESTS.name,
        metric_names.LIVE_REQUESTS.name,
        metric_names.KV_TOKENS_USED.name,
    )
    ends_at_s = time.monotonic() + 60
    metrics = await _metrics(admin)
    while any(metrics[name] for name in held) and time.monotonic() < ends_at_s:
        await asyncio.sleep(0.5)
        metrics = await _metrics(admin)
    tally.faults += [f"leak: {name} is {metrics[name]}" for name in held if metrics[name]]
    await admin.post("/flush_cache")
    while metrics[metric_names.KV_TOKENS_CACHED.name] and time.monotonic() < ends_at_s:
        await asyncio.sleep(0.5)
        metrics = await _metrics(admin)
    if metrics[metric_names.KV_TOKENS_CACHED.name]:
        tally.faults.append("leak: the cache is not empty after a flush")
    finished = metric_names.REQUESTS_FINISHED.name
    return {
        "worker restarts": metrics[metric_names.PROCESS_RESTARTS.name],
        "retractions": metrics[metric_names.ENGINE_RETRACTIONS.name],
        "resumes": metrics[metric_names.REQUESTS_RESUMED.name],
        "aborts": tally.endings["abort"],
        "deadlines": tally.endings["deadline"],
        "disconnects": tally.endings["left"],
        "finished, all fronts": metrics[finished],
    }


async def _metrics(admin: httpx.AsyncClient) -> dict[str, int]:
    """Sum each metric over its labels."""
    got = await admin.get("/metrics")
    sums: dict[str, float] = {name.name: 0.0 for name in metric_names.METRICS}
    for line in got.text.splitlines():
        if line.startswith("#"):
            continue
        name = line.split("{")[0].split(" ")[0]
        if name in sums:
            sums[name] += float(line.split()[-1])
    return {name: round(total) for name, total in sums.items()}
