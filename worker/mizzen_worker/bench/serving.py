"""Owns the open-loop benchmark of a server over HTTP: arrivals, streams, latencies.

Requests arrive as a Poisson process whatever the server does, so a server that falls behind shows
it in its latencies (a closed loop would hide it by asking less). Every request is one streamed
``/generate`` of token ids; times are the client's own. A request that fails counts as failed and in
no latency.
"""

import asyncio
import json
import random  # noqa: TID251 - seeded: the same arrivals everywhere
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx

from mizzen_worker.bench.measures import Row
from mizzen_worker.bench.progress import Progress
from mizzen_worker.bench.workloads import BenchRequest

_EVENT = "data: "
_DONE = "[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One answered request, seconds. ``gaps`` lie between the arrivals of its tokens."""

    first_token_s: float
    total_s: float
    gaps: tuple[float, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLoad:
    """``rate`` requests a second on average; infinity submits all at once."""

    url: str
    rate: float
    temperature: float
    seed: int = 0


def arrival_times(count: int, rate: float, seed: int) -> list[float]:
    """Seconds from the start at which requests arrive; exponential gaps."""
    if rate == float("inf"):
        return [0.0] * count
    dice = random.Random(seed)
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += dice.expovariate(rate)
    return times


def measure_serving(requests: Sequence[BenchRequest], load: ServingLoad) -> Row:
    """Send all of them in time and wait for all; returns one row."""
    started = time.perf_counter()
    served = asyncio.run(_send_all(requests, load))
    wall_s = time.perf_counter() - started
    return summarise(served, num_requests=len(requests), wall_s=wall_s, rate=load.rate)


def served_model(url: str) -> str:
    """What a server calls its model; empty where it does not say."""
    try:
        found = httpx.get(f"{url}/v1/models", trust_env=False).raise_for_status().json()
        return str(found["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return ""


def summarise(served: Sequence[Served], *, num_requests: int, wall_s: float, rate: float) -> Row:
    """Rates over the wall time, and percentiles of the latencies in milliseconds."""
    firsts = [one.first_token_s for one in served]
    gaps = [gap for one in served for gap in one.gaps]
    num_tokens = sum(one.num_tokens for one in served)
    return {
        "requests": num_requests,
        "failed": num_requests - len(served),
        "rate /s": rate,
        "wall s": wall_s,
        "output tok/s": num_tokens / wall_s,
        "TTFT p50 ms": percentile(firsts, 0.5) * 1e3,
        "TTFT p99 ms": percentile(firsts, 0.99) * 1e3,
        "between tokens p50 ms": percentile(gaps, 0.5) * 1e3,
        "between tokens p99 ms": percentile(gaps, 0.99) * 1e3,
        "whole p50 s": percentile([one.total_s for one in served], 0.5),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of them do not exceed; NaN of nothing."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1e6) * len(ordered) // 1_000_000) - 1)]


async def _send_all(requests: Sequence[BenchRequest], load: ServingLoad) -> list[Served]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    progress = Progress("serving", len(requests))
    times = arrival_times(len(requests), load.rate, load.seed)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:
        started = time.perf_counter()

        async def one(request: BenchRequest, arrives_at: float, seed: int) -> Served | None:
            await asyncio.sleep(max(0.0, started + arrives_at - time.perf_counter()))
            try:
                return await _send(client, request, load, seed)
            except (httpx.HTTPError, ValueError, KeyError) as error:
                progress.tell(f"a request failed: {error}")
                return None
            finally:
                progress.count(1)

        pairs = zip(requests, times, strict=True)
        tasks = [one(request, at, index + 1) for index, (request, at) in enumerate(pairs)]
        answers = await asyncio.gather(*tasks)
    return [answer for answer in answers if answer is not None]


async def _send(
    client: httpx.AsyncClient, request: BenchRequest, load: ServingLoad, seed: int
) -> Served:
    body = {
        "input_ids": request.prompt_ids,
        "stream": True,
        "sampling_params": {
            "max_new_tokens": request.num_new,
            "temperature": load.temperature,
            "ignore_eos": True,
            "sampling_seed": seed,
        },
    }
    started = time.perf_counter()
    arrivals: list[float] = []
    num_tokens = 0
    async with client.stream("POST", f"{load.url}/generate", json=body) as response:
        if response.is_error:
            message = f"{response.status_code}: {(await response.aread()).decode()[:200]}"
            raise ValueError(message)
        async for event in _events(response):
            if "error" in event:
                message = f"the stream ended with an error: {event['error']}"
                raise ValueError(message)
            arrivals.append(time.perf_counter())
            num_tokens = event["meta_info"]["completion_tokens"]
    if num_tokens != request.num_new:
        message = f"{num_tokens} tokens came instead of {request.num_new}"
        raise ValueError(message)
    gaps = tuple(later - earlier for earlier, later in pairwise(arrivals))
    return Served(
        first_token_s=arrivals[0] - started,
        total_s=arrivals[-1] - started,
        gaps=gaps,
        num_tokens=num_tokens,
    )


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith(_EVENT):
            text = line.removeprefix(_EVENT)
            if text == _DONE:
                return
            yield json.loads(text)
