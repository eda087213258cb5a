"""Times the engine on a GPU: ``python3 -m tests.bench.bench_gpu`` (.:operator:worker on the path).

The scheduler loop over the real runner, without processes and text; made-up weights in the shape
of a known model, random prompts, greedy, no end but the length. A fixed batch arrives at once.
``TTFT`` is the time of the same batch with one new token; ``step`` is what each further token adds;
``launch`` is the host's part of a decode step, before any waiting (median).
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
from tests.bench.report import publish
from tests.worker.recording_endpoint import RecordingEndpoint

from mizzen_worker.contracts.batch import PendingStep, Runner, RunnerLimits, ScheduleBatch
from mizzen_worker.contracts.ids import Generation, InstanceId, PeerId, RequestId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Attach,
    Finished,
    ModelIdentity,
    Submit,
)
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.model_executor.factory import RunnerOptions, WeightFormat, load_runner
from mizzen_worker.scheduler.loop import SchedulerLoop
from mizzen_worker.scheduler.settings import SchedulerSettings

PEER = PeerId(b"front")
IDENTITY = ModelIdentity(served_name="m", fingerprint="f", tokenizer="t", resume_identity="r")
QWEN06B: dict[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "eos_token_id": 151645,
    "bos_token_id": 151643,
}


class _TimedRunner:
    """Notes how long each launch of decode rows alone keeps the host."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.launch_s: list[float] = []

    @property
    def limits(self) -> RunnerLimits:
        return self._runner.limits

    def launch(self, batch: ScheduleBatch) -> PendingStep:
        started = time.perf_counter()
        pending = self._runner.launch(batch)
        if not batch.extends:
            self.launch_s.append(time.perf_counter() - started)
        return pending


class Engine:
    """One loop that keeps its runner warm."""

    def __init__(self, runner: Runner, max_running: int, *, is_overlapped: bool) -> None:
        self.runner = _TimedRunner(runner)
        self.endpoint = RecordingEndpoint()
        self._dice = random.Random(0)
        self._num_submitted = 0
        self.loop = SchedulerLoop(
            runner=self.runner,
            endpoint=self.endpoint,
            clock=time.monotonic,
            settings=SchedulerSettings(
                instance_id=InstanceId("here"),
                identity=IDENTITY,
                eos_token_ids=(),
                max_running=max_running,
                max_queued=1000,
                max_chunk_tokens=8192,
                is_overlapped=is_overlapped,
                is_audited=False,
            ),
        )
        attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("front"), credit=10**9)
        self.endpoint.inbox.append((PEER, attach))

    def serve(self, num_requests: int, num_prompt: int, num_new: int) -> float:
        """Seconds from the arrival of fresh prompts to the last answer."""
        for _ in range(num_requests):
            self._num_submitted += 1
            self.endpoint.inbox.append((PEER, self._submit(num_prompt, num_new)))
        started, num_finished = time.perf_counter(), 0
        while num_finished < num_requests:
            self.loop.run_once()
            num_finished += sum(isinstance(sent, Finished) for _, sent in self.endpoint.sent)
            self.endpoint.sent.clear()
        return time.perf_counter() - started

    def _submit(self, num_prompt: int, num_new: int) -> Submit:
        return Submit(
            request_id=RequestId(str(self._num_submitted)),
            generation=Generation(0),
            prompt_ids=tuple(self._dice.randint(0, 10_000) for _ in range(num_prompt)),
            sampling=SamplingParams(max_new_tokens=num_new, seed=1, temperature=0.0),
        )


def measure(engine: Engine, batch: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Median of the rounds, after one that warms up."""
    prompt, num_new = arguments.prompt, arguments.new_tokens
    engine.serve(batch, prompt, num_new)
    first = statistics.median(engine.serve(batch, prompt, 1) for _ in range(arguments.rounds))
    engine.runner.launch_s.clear()
    whole = statistics.median(engine.serve(batch, prompt, num_new) for _ in range(arguments.rounds))
    step_s = (whole - first) / (num_new - 1)
    return {
        "TTFT ms": first * 1e3,
        "step ms": step_s * 1e3,
        "launch ms": statistics.median(engine.runner.launch_s) * 1e3,
        "decode tok/s": batch / step_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_gpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, help="fewer layers than the model has, for a try")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, default=Path("out/bench_gpu.json"))
    arguments = parser.parse_args()
    most = max(arguments.batches)
    changes = {"num_hidden_layers": arguments.layers} if arguments.layers else {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(QWEN06B | changes))
        options = RunnerOptions(
            model=Path(folder),
            page_size=16,
            kv_tokens=2 * most * (arguments.prompt + arguments.new_tokens + 16),
            max_slots=2 * most + 2,
            weight_format=WeightFormat.DUMMY,
            device=arguments.device,
        )
        runner = load_runner(options, lambda done, total: None).runner
    is_gpu = arguments.device != "cpu"
    device = torch.cuda.get_device_name() if is_gpu else "cpu"
    rows = [
        {"device": device, "model": "qwen06b", "overlap": "on" if is_overlapped else "off"}
        | {"batch": batch}
        | measure(Engine(runner, most, is_overlapped=is_overlapped), batch, arguments)
        for batch in arguments.batches
        for is_overlapped in (False, True)
    ]
    publish("gpu", rows, arguments.json)


if __name__ == "__main__":
    main()
