"""Measures the CPU that a streamed token costs in each process of ``mizzen serve``.

``python -m tests.bench.bench_streaming`` (operator:worker on the path). Runs the whole server with
a tiny random model, streams many chat completions at once, token by token, and reads what each
process took from /proc: a busy machine makes the numbers noisier, not wrong. The client is a
process like any other and not counted.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

from tests.bench.report import Row, publish
from tests.worker.launched import Launched, free_port, write_tiny_model

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARTS = {"front": "http_api", "detokenizer": "detokenizer", "rank": "scheduler"}


async def _stream(port: int, number: int, num_tokens: int) -> int:
    """Read one stream to its end; give the number of events."""
    body = json.dumps(
        {
            "model": "tiny",
            "prompt": f"Story {number} begins",
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await reader.read(-1)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
    assert b"data: [DONE]" in answer
    return answer.count(b"data: {")


async def _streams(port: int, num_streams: int, num_tokens: int) -> int:
    counts = await asyncio.gather(
        *(_stream(port, number, num_tokens) for number in range(num_streams))
    )
    return sum(counts)


def _cpu_s(pids: list[int]) -> list[float]:
    found = []
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        found.append((int(fields[11]) + int(fields[12])) / _TICKS_PER_S)
    return found


def _measure(model: Path, folder: Path, num_fronts: int, num_streams: int, num_tokens: int) -> Row:
    port = free_port()
    with Launched(
        *("serve", str(model), "--http-port", str(port), "--threads", "1"),
        *("--tokenizer-workers", str(num_fronts), "--max-running-requests", str(num_streams)),
        *("--kv-tokens", str(num_streams * (num_tokens + 64)), "--served-model-name", "tiny"),
        log=folder / f"log-{num_fronts}",
        admin_port=free_port(),
    ) as served:
        served.until_ready()
        asyncio.run(_streams(port, num_streams, 20))
        pids = {name: served.pids_of(part) for name, part in _PARTS.items()}
        before = {name: _cpu_s(found) for name, found in pids.items()}
        begun = time.monotonic()
        num_events = asyncio.run(_streams(port, num_streams, num_tokens))
        wall_s = time.monotonic() - begun
        used = {
            name: [after - first for first, after in zip(before[name], _cpu_s(found), strict=True)]
            for name, found in pids.items()
        }
    total = num_streams * num_tokens
    row: dict[str, str | int | float] = {
        "fronts": num_fronts,
        "streams": num_streams,
        "tokens": total,
        "events": num_events,
    }
    row.update({f"{name} us/token": sum(times) / total * 1e6 for name, times in used.items()})
    row["front us/event"] = sum(used["front"]) / num_events * 1e6
    row["busiest front %"] = max(used["front"]) / sum(used["front"]) * 100
    row["tokens/s"] = total / wall_s
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--fronts", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path, default=Path("bench-streaming.json"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_tiny_model(folder / "tiny")
        rows = [
            _measure(model, folder, num_fronts, num_streams, given.tokens)
            for num_fronts in given.fronts
            for num_streams in given.streams
        ]
    publish("streaming", rows, given.json)


if __name__ == "__main__":
    main()
