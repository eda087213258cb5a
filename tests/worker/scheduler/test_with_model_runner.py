"""The scheduler on the real runner and a tiny random model gives transformers' greedy tokens."""

from pathlib import Path

import msgspec
import pytest
from tests.worker.model_executor.tiny_llama import (
    random_prompt,
    reference_greedy,
    save_tiny_llama,
)
from tests.worker.recording_endpoint import RecordingEndpoint
from tests.worker.scheduler.harness import IDENTITY, PEER, make_submit

from mizzen_worker.contracts.batch import Runner
from mizzen_worker.contracts.ids import InstanceId
from mizzen_worker.contracts.messages import WIRE_VERSION, Attach, Finished, TokenEvents
from mizzen_worker.model_executor.factory import ComputeType, RunnerOptions, load_runner
from mizzen_worker.scheduler.loop import SchedulerLoop
from mizzen_worker.scheduler.settings import SchedulerSettings

NUM_NEW = 10


@pytest.fixture(scope="module")
def prompts_and_outputs(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("tiny")
    model = save_tiny_llama(folder)
    shared = random_prompt(0, 40)
    prompts = [shared + random_prompt(seed, 5 + 9 * seed) for seed in range(1, 5)]
    prompts += [random_prompt(7, 3), shared[:32], random_prompt(8, 61)]
    return folder, [(prompt, reference_greedy(model, prompt, NUM_NEW)) for prompt in prompts]


def _load(folder: Path, page_size: int, kv_tokens: int) -> Runner:
    options = RunnerOptions(
        model=folder,
        page_size=page_size,
        kv_tokens=kv_tokens,
        max_slots=4,
        compute_type=ComputeType.FLOAT32,
        num_threads=1,
    )
    return load_runner(options, lambda done, total: None).runner


def _serve(loop: SchedulerLoop, endpoint: RecordingEndpoint, prompts: list[list[int]]):
    outputs: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        named = make_submit(f"r{len(endpoint.sent)}-{number}", [], max_new_tokens=NUM_NEW)
        submit = msgspec.structs.replace(named, prompt_ids=tuple(prompt))
        outputs[submit.request_id] = []
        endpoint.inbox.append((PEER, submit))
    first, num_finished = len(endpoint.sent), 0
    while num_finished < len(prompts):
        loop.run_once()
        for _, message in endpoint.sent[first:]:
            if isinstance(message, TokenEvents):
                for event in message.events:
                    outputs[event.request_id].extend(event.token_ids)
            num_finished += isinstance(message, Finished)
        first = len(endpoint.sent)
    return list(outputs.values())


@pytest.mark.parametrize(("page_size", "kv_tokens"), [(1, 170), (16, 176)])
def test_tokens_equal_transformers(prompts_and_outputs, page_size: int, kv_tokens: int) -> None:
    folder, pairs = prompts_and_outputs
    endpoint = RecordingEndpoint()
    loop = SchedulerLoop(
        runner=_load(folder, page_size, kv_tokens),
        endpoint=endpoint,
        clock=lambda: 0.0,
        settings=SchedulerSettings(
            instance_id=InstanceId("here"),
            identity=IDENTITY,
            eos_token_ids=(),
            max_running=4,
            max_queued=100,
            max_chunk_tokens=32,
            is_audited=True,
        ),
    )
    attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("front"), credit=0)
    endpoint.inbox.append((PEER, attach))
    prompts = [prompt for prompt, _ in pairs]
    expected = [output for _, output in pairs]
    for prompt, output in pairs[:2]:
        assert _serve(loop, endpoint, [prompt]) == [output], "alone and cold"
    assert _serve(loop, endpoint, prompts) == expected, "together"
    assert _serve(loop, endpoint, prompts[::-1]) == expected[::-1], "together and warm"
    assert loop.counters.cached_tokens > 0
