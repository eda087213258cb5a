"""The scheduler on real, deterministic runners: tokens equal those of a run alone, bit for bit.

Random requests arrive at random steps, share prefixes, and run in a pool so small that they are
retracted, in chunks, cold and warm, with overlap and without. Some sample with a seed and with
penalties; all ask for log-probabilities, some of the prompt too, which must be the same floats.
"""

import random
from pathlib import Path

import msgspec
import pytest
from tests.scale import count, scale
from tests.worker.model_executor.tiny_llama import random_prompt
from tests.worker.model_executor.tiny_models import (
    ARCHITECTURES,
    EVERY_BACKEND,
    TORCH_BACKENDS,
    load_tiny,
    save_tiny,
)
from tests.worker.recording_endpoint import RecordingEndpoint
from tests.worker.scheduler.harness import IDENTITY, PEER, make_submit

from mizzen_worker.contracts.batch import Runner
from mizzen_worker.contracts.ids import InstanceId
from mizzen_worker.contracts.messages import WIRE_VERSION, Attach, Finished, Submit, TokenEvents
from mizzen_worker.contracts.request import LogprobParams
from mizzen_worker.scheduler.loop import SchedulerLoop
from mizzen_worker.scheduler.settings import SchedulerSettings

VARIANTS = ARCHITECTURES if scale() == "full" else ARCHITECTURES[:2]
"""A check takes those without and with windows: ``test_deterministic`` looks at each of them."""
PAGE_SIZE = 4
MAX_RUNNING = 5
NUM_SHORT = 4
"""Requests that run first and end early, so that too many of the long ones are let in."""


class Served:
    """One loop over one runner, and what came out of it."""

    def __init__(
        self, runner: Runner, max_chunk_tokens: int, *, is_overlapped: bool = False
    ) -> None:
        self.endpoint = RecordingEndpoint()
        self.outputs: dict[str, list[object]] = {}
        """Token ids and scores of output and prompt, each in its order."""
        self._num_read = self._num_finished = 0
        self.loop = SchedulerLoop(
            runner=runner,
            endpoint=self.endpoint,
            clock=lambda: 0.0,
            settings=SchedulerSettings(
                instance_id=InstanceId("here"),
                identity=IDENTITY,
                eos_token_ids=(),
                max_running=MAX_RUNNING,
                max_queued=100,
                max_chunk_tokens=max_chunk_tokens,
                is_overlapped=is_overlapped,
                is_audited=True,
            ),
        )
        attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("front"), credit=10**6)
        self.endpoint.inbox.append((PEER, attach))

    def run(self, submits: list[Submit], arrivals: list[int]) -> None:
        """Request i arrives before step ``arrivals[i]``."""
        waiting = sorted(zip(arrivals, submits, strict=True), key=lambda pair: pair[0])
        wanted, step = self._num_finished + len(submits), 0
        while self._num_finished < wanted:
            while waiting and waiting[0][0] <= step:
                _, submit = waiting.pop(0)
                self.outputs[submit.request_id] = [[], [], []]
                self.endpoint.inbox.append((PEER, submit))
            self.loop.run_once()
            self._read()
            step += 1

    def _read(self) -> None:
        for _, message in self.endpoint.sent[self._num_read :]:
            if isinstance(message, TokenEvents):
                for event in message.events:
                    ids, scores, _ = self.outputs[event.request_id]
                    ids.extend(event.token_ids)
                    scores.extend(event.logprobs)
                for scored in message.prompt_logprobs:
                    self.outputs[scored.request_id][2].extend(scored.logprobs)
            self._num_finished += isinstance(message, Finished)
        self._num_read = len(self.endpoint.sent)


def random_requests(rng: random.Random, workload: int, *, is_long: bool) -> list[Submit]:
    shared = random_prompt(workload, 90 if is_long else 16)
    requests = []
    for number in range(10):
        prefix = shared[: rng.choice([0, len(shared) // 2, len(shared)])]
        own = rng.choice([1, 7, 20, 150 if is_long else 25])
        prompt = prefix + random_prompt(1000 * workload + number, own)
        submit = make_submit(
            f"r{workload}-{number}",
            [],
            max_new_tokens=3 if number < NUM_SHORT else rng.choice([4, 40, 50]),
            temperature=rng.choice([0.0, 0.0, 0.9]),
            seed=rng.randrange(2**32),
            repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
            frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
            logprobs=LogprobParams(num_top=2, prompt_start=rng.choice([None, len(prompt) // 2])),
        )
        requests.append(msgspec.structs.replace(submit, prompt_ids=tuple(prompt)))
    return requests


@pytest.mark.timeout(1200)  # A minute on an idle core, and it competes for two.
@pytest.mark.parametrize("variant", VARIANTS)
@EVERY_BACKEND
def test_tokens_equal_a_run_alone(tmp_path: Path, variant: str, backend: str) -> None:
    save_tiny(tmp_path, variant)
    is_long = backend not in TORCH_BACKENDS
    sizes = {"max_slots": MAX_RUNNING + 1, "page_size": PAGE_SIZE, "is_deterministic": True}
    roomy = load_tiny(tmp_path, backend, kv_tokens=512, **sizes)
    tight = load_tiny(tmp_path, backend, kv_tokens=300 if is_long else 92, **sizes)
    num_retractions = num_cached = 0
    for workload in range(count(check=2 if is_long else 1, full=15)):
        rng = random.Random(workload)
        requests = random_requests(rng, workload, is_long=is_long)
        alone: dict[str, list[object]] = {}
        for submit in requests:
            solo = Served(roomy, max_chunk_tokens=512)
            solo.run([submit], [0])
            alone |= solo.outputs
        assert all(len(ids) == len(scores) for ids, scores, _ in alone.values())
        assert any(prompt_scores for _, _, prompt_scores in alone.values())
        for is_overlapped in (False, True):
            chunk = rng.choice([5, 16, 64])
            served = Served(tight, chunk, is_overlapped=is_overlapped)
            served.run(requests[:NUM_SHORT], [0] * NUM_SHORT)
            long = requests[NUM_SHORT:]
            served.run(long, [rng.randrange(6) for _ in long])
            assert served.outputs == alone
            num_retractions += served.loop.counters.retractions
            num_cached += served.loop.counters.cached_tokens
    print(num_retractions, num_cached)
    assert num_retractions > 0
    assert num_cached > 0
