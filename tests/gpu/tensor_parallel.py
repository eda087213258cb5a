"""Tensor parallel on two GPUs of one machine: is it right, and how fast (``tests/gpu/run.sh``).

    python3 -m tests.gpu.tensor_parallel tests|times [PART ...] [--device cpu]

``tests``: what is exchanged, in and out of graphs; a killed rank ends the other; models of two
ranks against one by the equality rule, with graphs and without. ``times``: llama8b on one GPU and
on two, decode steps and prefill; numbers go to MIZZEN_OUT (out). Ranks are processes that meet as a
worker's do and see one GPU each. ``--device cpu`` rehearses all of it over gloo, on small models.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from tests.worker.model_executor.rank_group import Answer
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver

from mizzen_worker.bench.device_use import meter_of
from mizzen_worker.bench.engine import BenchEngine, EngineLimits
from mizzen_worker.bench.measures import BenchSizes, measure_decode, measure_prefill
from mizzen_worker.bench.report import facts_of_machine, table, write_json
from mizzen_worker.bench.shapes import SHAPES
from mizzen_worker.contracts.request import LogprobParams, SamplingParams
from mizzen_worker.ipc.parent_link import ParentLink, Report
from mizzen_worker.layers.collective import Collective
from mizzen_worker.layers.gpu.expert_tally import ExpertTally
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.graphs import CudaGraphs
from mizzen_worker.model_executor.load_phase import PhaseClock, ignore_phase
from mizzen_worker.model_executor.runner_options import ComputeType, RunnerOptions, WeightFormat
from mizzen_worker.rank_group.membership import Followership, Leadership, join_group, lead_group
from mizzen_worker.rank_group.place import RankPlace

SIZE = 2
LIMIT_S = 280
HEARTBEAT_LIMIT_S = 5.0
PAGE_SIZE = 16
LOGIT_NOISE = 1e-3
"""Of float32 log-probabilities: what sums in another order do to one; twice that to a gap."""
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
ODD = {**TINY, "vocab_size": 999, "num_key_value_heads": 1}
"""Ranks have unequal parts of the vocabulary, and one KV head in common."""
EXPERTS = {
    **TINY,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 256,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
}


@dataclass
class Task:
    """What ranks do; ``model`` is a config.json, of made-up weights."""

    work: str
    device: str
    model: dict[str, Any] = field(default_factory=dict)
    compute: str = "float32"
    modes: tuple[str, ...] = ("launches", "graphs")
    """With graphs no scores are asked for: steps that give them are not captured ones."""
    prompts: tuple[int, ...] = ()
    num_new: int = 16
    batches: tuple[int, ...] = ()


class _Alone(ParentLink):
    """There is no launcher to tell."""

    def __init__(self) -> None:
        """No line."""

    def report(self, report: Report) -> None:
        say(f"pid {os.getpid()} ends: {report.detail}")

    def live(self) -> None:
        """Nobody looks."""


def say(text: str) -> None:
    sys.stdout.write(f"[{time.strftime('%H:%M:%S')}] {text}\n")
    sys.stdout.flush()


# A rank's process.


def _rank(rank: int, size: int, folder: Path) -> None:
    task = Task(**json.loads((folder / "task.json").read_text()))
    device = torch.device("cuda", 0) if task.device == "cuda" else torch.device("cpu")
    torch.set_num_threads(1)
    group = _join(rank, size, folder, device) if size > 1 else None
    found = _WORK[task.work](task, group, device)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


def _join(rank: int, size: int, folder: Path, device: torch.device) -> Leadership | Followership:
    place = RankPlace(
        rank=rank,
        size=size,
        group_id="two GPUs",
        epoch="",
        address=f"ipc://{folder}/ranks",
        host="",
        rendezvous_timeout_s=120.0,
        heartbeat_limit_s=HEARTBEAT_LIMIT_S,
    )
    open_group = lead_group if rank == 0 else join_group
    return cast(
        "Leadership | Followership",
        open_group(
            place,
            {},
            curve_dir=None,
            parent=_Alone(),
            on_wait=lambda *_: None,
            device=device,
        ),
    )


def _collective_of(group: Leadership | Followership | None) -> Collective | None:
    return None if group is None else group.collective


def _exchange(
    task: Task, group: Leadership | Followership | None, device: torch.device
) -> dict[str, float]:
    """Check every exchange, and time sums in a graph: microseconds of one."""
    del task
    collective = _collective_of(group)
    assert collective is not None
    for dtype in (torch.float32, torch.bfloat16):
        for rows in (1, 3, 32, 128, 2048):
            _check_exchange(collective, device, dtype, rows)
    counts = torch.tensor([[7 + collective.rank]])
    assert collective.gather_columns(counts).tolist() == [[7, 8]], "integers of the host"
    if device.type != "cuda":
        return {}
    with torch.inference_mode():
        _check_captured(collective, device)
        return _time_sums(collective, device)


def _parts(dtype: torch.dtype, rows: int, seed: int = 0) -> list[torch.Tensor]:
    """Of every rank, made on the host: the same on all of them."""
    generator = torch.Generator().manual_seed(rows + seed)
    return [torch.randn(rows, 4096, generator=generator).to(dtype) for _ in range(SIZE)]


def _check_exchange(
    collective: Collective, device: torch.device, dtype: torch.dtype, rows: int
) -> None:
    parts = [part.to(device) for part in _parts(dtype, rows)]
    own = parts[collective.rank]
    total = own.clone()
    collective.sum_over_ranks(total)
    assert torch.equal(total, parts[0] + parts[1]), ("sum", dtype, rows)
    assert torch.equal(collective.gather_columns(own), torch.cat(parts, dim=1)), ("gather", rows)
    copied = own.clone()
    collective.copy_from_leader(copied)
    assert torch.equal(copied, parts[0]), ("copy", dtype, rows)


def _check_captured(collective: Collective, device: torch.device) -> None:
    own = torch.empty(32, 4096, dtype=torch.bfloat16, device=device)
    kept = [torch.empty_like(own), torch.empty(32, SIZE * 4096, dtype=own.dtype, device=device)]
    copied = torch.empty_like(own)

    def work() -> None:
        kept[0].copy_(own)
        collective.sum_over_ranks(kept[0])
        kept[1].copy_(collective.gather_columns(own))
        copied.copy_(own)
        collective.copy_from_leader(copied)

    own.zero_()
    graph, _ = CudaGraphs(device).capture(work, work)
    for seed in range(1, 4):
        parts = [part.to(device) for part in _parts(torch.bfloat16, 32, seed)]
        own.copy_(parts[collective.rank])
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(kept[0], parts[0] + parts[1]), "captured sum"
        assert torch.equal(kept[1], torch.cat(parts, dim=1)), "captured gather"
        assert torch.equal(copied, parts[0]), "captured copy"
        # And one that is not captured, in between.
        _check_exchange(collective, device, torch.bfloat16, 3)


def _time_sums(collective: Collective, device: torch.device) -> dict[str, float]:
    count, found = 64, {}
    for dtype in (torch.float32, torch.bfloat16):
        for rows in (1, 32, 128, 2048):
            values = torch.zeros(rows, 4096, dtype=dtype, device=device)

            def work(values: torch.Tensor = values) -> None:
                for _ in range(count):
                    collective.sum_over_ranks(values)

            graph, _ = CudaGraphs(device).capture(work, work)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            begin.record()
            for _ in range(5):
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            name = f"{rows} x 4096 {dtype}".replace("torch.", "")
            found[name] = begin.elapsed_time(end) * 1e3 / (5 * count)
    return found


def _options(task: Task, folder: Path, *, uses_graphs: bool = True) -> RunnerOptions:
    (folder / "config.json").write_text(json.dumps(task.model))
    return RunnerOptions(
        model=folder,
        kv_tokens=8192,
        page_size=PAGE_SIZE,
        max_slots=9,
        context_length=2048,
        compute_type=ComputeType(task.compute),
        weight_format=WeightFormat.DUMMY,
        device=task.device,
        uses_graphs=uses_graphs,
        max_chunk_tokens=2048,
    )


def _answer(
    task: Task, group: Leadership | Followership | None, device: torch.device
) -> dict[str, Any]:
    """The answers of each mode."""
    del device
    collective = _collective_of(group)
    return {mode: _answer_in(task, collective, mode) for mode in task.modes}


def _answer_in(task: Task, collective: Collective | None, mode: str) -> dict[str, Any]:
    """Every prompt alone, then all at once; greedy."""
    asks_scores = mode != "graphs"
    is_leader = collective is None or collective.rank == 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        options = _options(task, Path(folder), uses_graphs=not asks_scores)
        runner = load_runner(options, lambda done, total: None, collective=collective).runner
    load_s = time.monotonic() - started
    driver = RunnerDriver(runner, has_scores=is_leader)
    requests = {}
    for number, length in enumerate(task.prompts):
        requests[f"{length} alone"] = _request(task, 1 + number, length, asks_scores)
        driver.generate(requests[f"{length} alone"])
    together = [
        _request(task, 1 + len(task.prompts) + number, length + 1, asks_scores)
        for number, length in enumerate(task.prompts)
    ]
    requests |= {f"{len(one.prompt)} beside others": one for one in together}
    for one in together:
        driver.start(one)
    driver.run([(one, len(one.prompt)) for one in together])
    driver.finish(together)
    return {
        "load_s": load_s,
        "num_pages": runner.limits.num_pages,
        "answers": {name: asdict(_told(request)) for name, request in requests.items()},
    }


def _request(task: Task, slot: int, length: int, asks_scores: bool) -> Driven:  # noqa: FBT001
    generator = torch.Generator().manual_seed(length)
    vocab_size = int(task.model["vocab_size"])
    logprobs = LogprobParams(num_top=2, prompt_start=1) if asks_scores else None
    return Driven(
        slot=slot,
        prompt=torch.randint(3, vocab_size, (length,), generator=generator).tolist(),
        sampling=SamplingParams(
            max_new_tokens=task.num_new,
            seed=1,
            temperature=0.0,
            ignore_eos=True,
            logprobs=logprobs,
        ),
    )


def _told(request: Driven) -> Answer:
    assert not request.error_tokens, request
    best = [sorted(top.values(), reverse=True) for top in request.tops]
    return Answer(
        ids=request.output,
        logprobs=request.logprobs,
        gaps=[first - second for first, second in best],
        prompt_logprobs=request.prompt_logprobs,
    )


def _lose(
    task: Task, group: Leadership | Followership | None, device: torch.device
) -> dict[str, Any]:
    """Exchange on and on; rank 1 is killed in the middle, and rank 0 waits for it on the device."""
    collective = _collective_of(group)
    assert collective is not None
    values = torch.ones(64, 4096, device=device)
    for turn in range(1000):
        if turn == 20 and collective.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        collective.sum_over_ranks(values)
        values.mul_(0.5)
    if device.type == "cuda":
        torch.cuda.synchronize()
    # On a CPU the exchange itself fails at once; what ends the process is the same.
    raise AssertionError(f"{task.work}: the other rank is gone and nothing ended this one")


def _time(
    task: Task, group: Leadership | Followership | None, device: torch.device
) -> dict[str, Any]:
    """Run the benchmarks over the links, as a worker's ranks do; a follower replays."""
    del device
    is_small = task.device == "cpu"
    clock = PhaseClock(ignore_phase, clock=time.perf_counter)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        options = replace(
            _options(task, Path(folder)),
            kv_tokens=None if not is_small else 8192,
            max_slots=145,
            max_rows=128,
            context_length=8192 if not is_small else None,
            max_chunk_tokens=8192,
        )
        loaded = load_runner(
            options, lambda done, total: None, clock.enter, collective=_collective_of(group)
        )
    load_s = time.perf_counter() - started
    phases = dict(clock.finish())
    runner = loaded.runner
    if isinstance(group, Followership):
        group.follow(runner, lambda **_: None)
        return {}
    if group is not None:
        runner = group.lead(runner, lambda *_: None)
    say(f"{1 if group is None else SIZE} ranks: ready after {load_s:.1f} s ({phases})")
    sizes = BenchSizes(
        batches=task.batches,
        num_new=task.num_new,
        num_prompt=task.prompts[0],
        prefill_length=task.prompts[1],
    )
    limits = EngineLimits(max_running=128, max_chunk_tokens=8192, is_overlapped=not is_small)
    engine = BenchEngine(runner, limits, meter_of(task.device, ExpertTally()))
    rows = {}
    for name, measure in (("decode", measure_decode), ("prefill", measure_prefill)):
        rows[name] = measure(engine, sizes)
        say(f"{name}, {1 if group is None else SIZE} ranks:\n{table(rows[name])}")
    num_pages = runner.limits.num_pages
    if group is not None:
        group.part()
    return {
        "machine": facts_of_machine(task.device),
        "load_s": load_s,
        "load_phases": phases,
        "kv_tokens": num_pages * PAGE_SIZE,
        "workloads": rows,
    }


_Work = Callable[[Task, Leadership | Followership | None, torch.device], Mapping[str, Any]]
_WORK: dict[str, _Work] = {"exchange": _exchange, "answer": _answer, "lose": _lose, "time": _time}


# The process that was called.


@contextmanager
def _started(task: Task, size: int, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    (folder / "task.json").write_text(json.dumps(asdict(task)))
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = names.split(",") if names else [str(number) for number in range(SIZE)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "rank", str(rank), str(size), str(folder)],
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": gpus[rank],
                "NCCL_SOCKET_IFNAME": "lo",
            },
        )
        for rank in range(size)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _run(task: Task, size: int) -> list[dict[str, Any]]:
    """What every rank found; raises ``AssertionError`` where one failed."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _started(task, size, folder) as ranks:
            # The first that fails ends all: the others wait for it.
            while any(rank.poll() is None for rank in ranks):
                assert all(rank.poll() in {None, 0} for rank in ranks), "a rank failed; see above"
                assert time.monotonic() - started < LIMIT_S, f"{task.work} does not end"
                time.sleep(0.05)
            assert [rank.returncode for rank in ranks] == [0] * size, "a rank failed; see above"
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def _check_lost_rank(device: str) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        _started(Task("lose", device), 2, Path(name)) as two,
    ):
        leader, follower = two
        assert follower.wait(LIMIT_S) == -signal.SIGKILL
        started = time.monotonic()
        assert leader.wait(60) == 1, leader.returncode
        say(f"rank 0 ended {time.monotonic() - started:.1f} s after rank 1 was killed")


def _compare(expected: Mapping[str, Any], found: Mapping[str, Any], noise: float) -> str:
    """Apply the equality rule; say how near the ranks came."""
    num_ties, differences = 0, [0.0]
    for request, answer in expected.items():
        one, two = Answer(**answer), Answer(**found[request])
        assert len(one.ids) == len(two.ids), request
        pairs = enumerate(zip(one.ids, two.ids, strict=True))
        place = next((index for index, (theirs, ours) in pairs if theirs != ours), None)
        if place is not None:
            num_ties += 1
            assert one.gaps[place] < 2 * noise, (request, place, one.gaps[place], one, two)
        if two.prompt_logprobs:
            both = [
                *zip(one.prompt_logprobs, two.prompt_logprobs, strict=True),
                *zip(one.logprobs[:place], two.logprobs[:place], strict=True),
            ]
            differences += [abs(theirs - ours) for theirs, ours in both]
    assert max(differences) < noise, max(differences)
    mean = sum(differences) / len(differences)
    return (
        f"{num_ties} of {len(expected)} answers differ from a near tie on;"
        f" log-probabilities by {max(differences):.2g} at most, {mean:.2g} on average"
    )


def _of_one_rank(task: Task) -> dict[str, Any]:
    """The answers of one rank by request."""
    found: dict[str, Any] = _run(replace(task, modes=("launches",)), 1)[0]["launches"]["answers"]
    return found


def _check_model(name: str, task: Task, expected: Mapping[str, Any], noise: float) -> None:
    leader, follower = _run(task, SIZE)
    for mode, found in leader.items():
        for request, answer in found["answers"].items():
            same = follower[mode]["answers"][request]["ids"]
            assert same == answer["ids"], (name, mode, request)
        assert found["num_pages"] == follower[mode]["num_pages"]
        told = _compare(expected, found["answers"], noise)
        say(f"{name}, {mode}: {told}; loaded in {found['load_s']:.1f} s")


def _check_exchanges(device: str) -> None:
    timed, _ = _run(Task("exchange", device), SIZE)
    say("exchanges are right, captured ones too" if timed else "exchanges are right")
    for name, microseconds in timed.items():
        say(f"  sum of {name}: {microseconds:.1f} us in a graph")


def _check_tiny(model: Mapping[str, Any], device: str) -> None:
    task = Task("answer", device, dict(model), prompts=(7, 40, 300))
    name = f"{model['model_type']} of {model['vocab_size']}"
    _check_model(name, task, _of_one_rank(task), LOGIT_NOISE)


def _check_large(device: str) -> None:
    shape = dict(SHAPES["llama8b"])
    task = Task("answer", device, shape, compute="bfloat16", prompts=(7, 300, 1000))
    rounded, exact = _of_one_rank(task), _of_one_rank(replace(task, compute="float32"))
    # Two computations in bfloat16 may be on either side of what float32 gives.
    noise = 2 * max(
        abs(ours - theirs)
        for request, answer in rounded.items()
        for ours, theirs in zip(
            answer["prompt_logprobs"], exact[request]["prompt_logprobs"], strict=True
        )
    )
    say(f"llama8b, one rank: bfloat16 moves log-probabilities by {noise / 2:.2g} at most")
    _check_model("llama8b", task, rounded, noise)


_PARTS: dict[str, Callable[[str], None]] = {
    "exchange": _check_exchanges,
    "lost": _check_lost_rank,
    "tiny": partial(_check_tiny, TINY),
    "llama8b": _check_large,
    "experts": partial(_check_tiny, EXPERTS),
    "odd": partial(_check_tiny, ODD),
}


def _tests(device: str, parts: Sequence[str]) -> None:
    for part in parts or _PARTS:
        if part == "llama8b" and device == "cpu":
            say("llama8b: left out, it is too large for this processor")
            continue
        _PARTS[part](device)
    say("all is right")


def _times(device: str) -> None:
    is_gpu = device == "cuda"
    task = Task(
        work="time",
        device=device,
        model=dict(SHAPES["llama8b"]) if is_gpu else {**TINY, "vocab_size": 12000},
        compute="bfloat16" if is_gpu else "float32",
        prompts=(1024, 4096) if is_gpu else (32, 64),
        num_new=256 if is_gpu else 8,
        batches=(1, 32, 128) if is_gpu else (1, 4),
    )
    out = Path(os.environ.get("MIZZEN_OUT", "out")) / "tensor-parallel.json"
    document: dict[str, Any] = {"model": "llama8b" if is_gpu else "tiny", "ranks": {}}
    for size in (SIZE, 1):
        document["ranks"][str(size)] = _run(task, size)[0]
        write_json(out, document)
    for name, key in (("decode", "step ms"), ("prefill", "input tok/s")):
        ones, twos = (document["ranks"][size]["workloads"][name] for size in ("1", "2"))
        for one, two in zip(ones, twos, strict=True):
            what = f"batch {one['batch']}" if "batch" in one else f"{one['length']} ids"
            say(f"{name}, {what}: {key} {one[key]:.5g} on one, {two[key]:.5g} on two")
    say(f"numbers are in {out}")


def main(arguments: Sequence[str]) -> None:
    """Run what was asked for."""
    if arguments[:1] == ["rank"]:
        _rank(int(arguments[1]), int(arguments[2]), Path(arguments[3]))
        return
    parser = argparse.ArgumentParser(prog="tests.gpu.tensor_parallel")
    parser.add_argument("what", choices=("tests", "times"))
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of tests: {', '.join(_PARTS)}")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and torch.cuda.device_count() < SIZE:
        parser.error(f"{torch.cuda.device_count()} GPUs are here, and {SIZE} are needed")
    unknown = set(given.parts) - set(_PARTS if given.what == "tests" else ())
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such part")
    if given.what == "tests":
        _tests(given.device, given.parts)
    else:
        _times(given.device)


if __name__ == "__main__":
    main(sys.argv[1:])
