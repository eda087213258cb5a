"""Measures the scheduler: ``python -m tests.bench.bench_scheduler`` (operator:worker on the path).

Decode steps with a runner that computes nothing, so what is timed is planning, building, settling
and encoding of answers into messages (not onto a wire), per step and per request-step.
"""

import argparse
import gc
import statistics
import time
from pathlib import Path

import numpy as np
from tests.bench.report import publish
from tests.worker.recording_endpoint import RecordingEndpoint

from mizzen_worker.contracts.batch import RunnerLimits, ScheduleBatch, StepResult
from mizzen_worker.contracts.ids import Generation, InstanceId, PeerId, RequestId
from mizzen_worker.contracts.messages import WIRE_VERSION, Attach, ModelIdentity, Submit
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.scheduler.loop import SchedulerLoop
from mizzen_worker.scheduler.settings import SchedulerSettings

PEER = PeerId(b"front")
PROMPT_TOKENS = 128


class _NullRunner:
    """Answers token 7 for every sampled row."""

    def __init__(self, limits: RunnerLimits) -> None:
        self._limits = limits

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    def launch(self, batch: ScheduleBatch) -> "_Done":
        num_sampled = sum(row.is_sampled for row in batch.extends) + len(batch.decodes.slots)
        return _Done(
            StepResult(
                step=batch.step,
                sampled_ids=np.full(num_sampled, 7, dtype=np.int32),
                is_finished=np.zeros(num_sampled, dtype=np.bool_),
            )
        )


class _Done:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def settle(self) -> StepResult:
        return self._result


def _build(num_requests: int, page_size: int, num_steps: int) -> tuple[SchedulerLoop, object]:
    context = PROMPT_TOKENS + num_steps + 64
    limits = RunnerLimits(
        max_slots=num_requests,
        num_pages=num_requests * (context // page_size + 2),
        page_size=page_size,
        context_length=context,
        vocab_size=50_000,
    )
    endpoint = RecordingEndpoint()
    identity = ModelIdentity(served_name="n", fingerprint="n", tokenizer="n", resume_identity="n")
    loop = SchedulerLoop(
        runner=_NullRunner(limits),
        endpoint=endpoint,
        clock=time.monotonic,
        settings=SchedulerSettings(
            instance_id=InstanceId("bench"),
            identity=identity,
            eos_token_ids=(),
            max_running=num_requests,
            max_queued=num_requests,
            max_chunk_tokens=num_requests * PROMPT_TOKENS,
        ),
    )
    attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("front"), credit=0)
    endpoint.inbox.append((PEER, attach))
    for number in range(num_requests):
        submit = Submit(
            request_id=RequestId(f"{number:032x}"),
            generation=Generation(0),
            prompt_ids=tuple(range(number, number + PROMPT_TOKENS)),
            sampling=SamplingParams(max_new_tokens=10**6, seed=number),
        )
        endpoint.inbox.append((PEER, submit))
    while loop.counters.running_requests < num_requests:
        loop.run_once()
    return loop, endpoint


def measure(num_requests: int, page_size: int, num_steps: int) -> dict[str, str | int | float]:
    """Time decode steps of one batch size."""
    loop, endpoint = _build(num_requests, page_size, num_steps)
    assert isinstance(endpoint, RecordingEndpoint)
    times = []
    gc.collect()
    for _ in range(num_steps):
        start = time.perf_counter()
        loop.run_once()
        times.append(time.perf_counter() - start)
        endpoint.sent.clear()
        endpoint.waits.clear()
    per_step = statistics.median(times) * 1e6
    return {
        "running": num_requests,
        "page_size": page_size,
        "us_per_step": round(per_step, 1),
        "us_per_request_step": round(per_step / num_requests, 2),
        "p99_us_per_step": round(sorted(times)[int(len(times) * 0.99)] * 1e6, 1),
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--page-sizes", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--json", type=Path, default=Path("out/bench/scheduler.json"))
    arguments = parser.parse_args()
    rows = [
        measure(running, page_size, arguments.steps)
        for page_size in arguments.page_sizes
        for running in arguments.running
    ]
    publish("scheduler", rows, arguments.json)


if __name__ == "__main__":
    main()
