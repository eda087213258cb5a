"""Measures the scheduler: ``python -m tests.bench.bench_scheduler`` (operator:worker on the path).

Decode steps with a runner that computes nothing, so what is timed is planning, building, launching
and settling, per step and per request-step; with and without the making of messages (not onto a
wire), with and without a step in flight.
"""

import argparse
import gc
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.bench.report import publish
from tests.worker.recording_endpoint import RecordingEndpoint

from mizzen_worker.contracts.batch import RunnerLimits, ScheduleBatch, StepResult
from mizzen_worker.contracts.ids import Generation, InstanceId, PeerId, RequestId
from mizzen_worker.contracts.messages import WIRE_VERSION, Attach, ModelIdentity, Submit
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.scheduler.loop import SchedulerLoop
from mizzen_worker.scheduler.req import Req
from mizzen_worker.scheduler.settings import SchedulerSettings
from mizzen_worker.scheduler.step_output import StepOutput

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


class _Mute(StepOutput):
    """Makes no messages, so that what is left is planning and settling."""

    def report_tokens(self, req: Req) -> None:
        req.num_reported = req.num_output


def _build(
    num_requests: int, page_size: int, num_steps: int, *, is_overlapped: bool
) -> tuple[SchedulerLoop, RecordingEndpoint]:
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
            is_overlapped=is_overlapped,
        ),
    )
    attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("front"), credit=0)
    endpoint.inbox.append((PEER, attach))
    for number in range(num_requests):
        submit = Submit(
            request_id=RequestId(f"{number:032x}"),
            generation=Generation(0),
            # Different lengths, so that every step has its share of rows that need a page.
            prompt_ids=tuple(range(number, number + PROMPT_TOKENS - number % 64)),
            sampling=SamplingParams(max_new_tokens=10**6, seed=number),
        )
        endpoint.inbox.append((PEER, submit))
    while loop.load.running_requests < num_requests:
        loop.run_once()
    return loop, endpoint


def measure(num_requests: int, page_size: int, num_steps: int) -> dict[str, str | int | float]:
    """Time decode steps of one batch size."""
    whole = _times(num_requests, page_size, num_steps, is_overlapped=False, is_mute=False)
    mute = _times(num_requests, page_size, num_steps, is_overlapped=False, is_mute=True)
    overlapped = _times(num_requests, page_size, num_steps, is_overlapped=True, is_mute=True)
    return {
        "running": num_requests,
        "page_size": page_size,
        "us_plan_and_settle": round(mute.median, 1),
        "us_overlapped": round(overlapped.median, 1),
        "us_target": 60 + num_requests,
        "us_with_messages": round(whole.median, 1),
        "us_per_request_step": round(whole.median / num_requests, 2),
        "p99_us_with_messages": round(whole.p99, 1),
    }


@dataclass(frozen=True, kw_only=True)
class _Times:
    """Microseconds of a step."""

    median: float
    p99: float


def _times(
    num_requests: int, page_size: int, num_steps: int, *, is_overlapped: bool, is_mute: bool
) -> _Times:
    loop, endpoint = _build(num_requests, page_size, num_steps, is_overlapped=is_overlapped)
    if is_mute:
        object.__setattr__(loop._state, "output", _Mute(endpoint))
    times = []
    gc.collect()
    gc.freeze()  # As the rank's process does.
    for _ in range(num_steps):
        start = time.perf_counter()
        loop.run_once()
        times.append(time.perf_counter() - start)
        endpoint.sent.clear()
        endpoint.waits.clear()
    gc.unfreeze()
    return _Times(
        median=statistics.median(times) * 1e6, p99=sorted(times)[int(len(times) * 0.99)] * 1e6
    )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, nargs="+", default=[1, 64, 256, 1024])
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
