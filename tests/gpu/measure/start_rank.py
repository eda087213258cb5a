"""What a process of a rank does after its imports, up to the first token; timed by its phases."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import triton
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime.jit import JITFunction

from mizzen_worker.bench.engine import BenchEngine, EngineLimits
from mizzen_worker.bench.workloads import equal_requests
from mizzen_worker.config.command_line import make_parser, parse_command_line
from mizzen_worker.config.groups import EngineOptions
from mizzen_worker.config.option import Role
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.gpu_forward import GpuForward
from mizzen_worker.model_executor.load_phase import LoadPhase
from mizzen_worker.scheduler.engine_setup import is_overlapped, runner_options


@dataclass(slots=True)
class Started:
    """When each phase began, and how much memory of the GPU was free then."""

    begun_s: dict[str, float] = field(default_factory=dict)
    free_gib: dict[str, float] = field(default_factory=dict)
    compiled: list[str] = field(default_factory=list)
    """Kernels that this process compiled itself, and for what."""

    def enter(self, phase: LoadPhase) -> None:
        self.note(phase.value)

    def note(self, name: str) -> None:
        self.begun_s[name] = time.monotonic()
        self.free_gib[name] = round(torch.cuda.mem_get_info()[0] / 2**30, 2)

    def note_compiled(self, *, src: ASTSource, cache_hit: bool, **_: object) -> None:
        """Implement Triton's listener."""
        if not cache_hit:
            self.compiled.append(f"{src.name} {src.signature} {src.constants} {src.attrs}")


def first_token(
    folder: Path, cache: Path, num_prompt: int, time_part: Callable[[type, str], None]
) -> Started:
    """Load as the flags of a server say, and answer one request of one token."""
    for owner, function in (
        (JITFunction, "_do_compile"),
        (CompiledKernel, "_init_handles"),
        (GpuForward, "rehearse_head"),
        (torch.cuda.CUDAGraph, "capture_begin"),
        (torch.cuda.CUDAGraph, "capture_end"),
    ):
        time_part(owner, function)
    started = Started()
    triton.knobs.compilation.listener = started.note_compiled
    torch.cuda.init()
    started.note("CUDA is there")
    flags = ["--device", "cuda", "--load-format", "dummy", "--compile-cache", str(cache)]
    parser = make_parser(Role.SERVE, description="", example="")
    configuration = parse_command_line(parser, Role.SERVE, ["--model", str(folder), *flags])
    engine = configuration.group(EngineOptions)
    options = runner_options(engine, folder)
    runner = load_runner(options, lambda done, total: None, started.enter).runner
    started.note("ready")
    limits = EngineLimits(
        max_running=engine.max_running_requests,
        max_chunk_tokens=engine.max_chunk_tokens,
        is_overlapped=is_overlapped(engine),
        decode_patience_s=engine.decode_patience_s,
    )
    BenchEngine(runner, limits).run(equal_requests(1, num_prompt=num_prompt, num_new=1, seed=1))
    started.note("first token")
    return started
