"""Tokens per second of the runner beside transformers and llama.cpp, same model, same prompts.

    python -m tests.bench.bench_offline [--model DIR] [--threads 2] [--llama-bin DIR]

One run measures all of them in turn, several rounds over, so that another load on the machine
meets everybody; the median round counts and the load stands beside each row. Decoding is timed
without the prompt's prefill. ``share of bandwidth`` is weight bytes read per second over the
machine's measured read bandwidth (one stream: every weight is read once per token).
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tests.bench.offline_peers import (
    LlamaCpp,
    OursDense,
    OursNative,
    Peer,
    Transformers,
    Workload,
)
from tests.bench.report import publish

from mizzen_worker.vocabulary.model_path import find_gguf

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
DEFAULT_MODEL = CACHE / "mizzen" / "models" / "smollm2-135m-instruct"


@dataclass
class Series:
    """What one peer reached at one workload, round by round."""

    peer: str
    workload: Workload
    tokens_per_s: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    weight_bytes: int = 0


def read_bandwidth(num_rounds: int = 5) -> tuple[float, float]:
    """Bytes per second of reading and of copying 512 MiB with all threads; the best round."""
    source = torch.ones(1 << 27, dtype=torch.float32)
    target = torch.empty_like(source)

    def best(work: Callable[[], object], num_bytes: int) -> float:
        seconds = []
        for _ in range(num_rounds):
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
        return num_bytes / min(seconds)

    return best(source.sum, source.nbytes), best(lambda: target.copy_(source), 2 * source.nbytes)


def measure(peers: list[Peer], workloads: list[Workload], num_rounds: int) -> list[Series]:
    """All peers at all workloads, in turn, ``num_rounds`` times."""
    series = [Series(peer=peer.name, workload=w) for w in workloads for peer in peers]
    for number in range(num_rounds):
        for entry in series:
            peer = next(peer for peer in peers if peer.name == entry.peer)
            entry.tokens_per_s.append(peer.tokens_per_s(entry.workload))
            entry.loads.append(os.getloadavg()[0])
            entry.weight_bytes = peer.weight_bytes
            rate = entry.tokens_per_s[-1]
            print(f"round {number + 1}: {entry.peer}, {entry.workload.name}: {rate:,.1f} tok/s")
    return series


def rows_of(series: list[Series], bandwidth: float) -> list[dict[str, str | int | float]]:
    rows: list[dict[str, str | int | float]] = []
    for entry in series:
        rate = statistics.median(entry.tokens_per_s)
        is_single = entry.workload.name == "1 stream"
        share = rate * entry.weight_bytes / bandwidth * 100 if is_single else 0.0
        rows.append(
            {
                "workload": entry.workload.name,
                "engine": entry.peer,
                "tok/s median": rate,
                "tok/s best": max(entry.tokens_per_s),
                "share of bandwidth %": round(share, 1) if is_single else "",
                "load": round(statistics.median(entry.loads), 1),
            }
        )
    return rows


def make_peers(arguments: argparse.Namespace) -> list[Peer]:
    gguf_path = find_gguf(arguments.model)
    if gguf_path is None:
        message = f"{arguments.model}: holds no GGUF file; run `make setup` or give --model"
        raise SystemExit(message)
    peers: list[Peer] = [OursNative(arguments.model, arguments.threads)]
    if arguments.with_dense:
        peers.append(OursDense(arguments.model, arguments.threads))
    if not arguments.without_transformers:
        peers += [
            Transformers(gguf_path, dtype, arguments.threads)
            for dtype in (torch.float32, torch.bfloat16)
        ]
    if arguments.llama_bin is not None:
        peers.append(LlamaCpp(arguments.llama_bin, gguf_path, arguments.threads))
    return peers


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_offline")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="folder with one GGUF")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--llama-bin", type=Path, help="folder with llama-bench (optional peer)")
    parser.add_argument("--with-dense", action="store_true", help="also ours in plain torch")
    parser.add_argument("--without-transformers", action="store_true")
    parser.add_argument("--json", type=Path, default=Path("out/bench_offline.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    read, copy = read_bandwidth()
    print(f"memory: read {read / 1e9:.1f} GB/s, copy {copy / 1e9:.1f} GB/s")
    workloads = [
        Workload(name="1 stream", num_streams=1, prompt=64, new_tokens=arguments.new_tokens),
        Workload(name="8 streams", num_streams=8, prompt=64, new_tokens=arguments.new_tokens),
        Workload(name="prefill 512", num_streams=1, prompt=512, new_tokens=0),
    ]
    series = measure(make_peers(arguments), workloads, arguments.rounds)
    publish("offline", rows_of(series, read), arguments.json)


if __name__ == "__main__":
    main()
