"""One life of a rank from exec to its first tokens, as a program of its own: prints JSON.

``python -m tests.gpu.measure.start_child FOLDER CACHE BEGUN_S``: a folder with a config.json, the
folder of compiled kernels, and when the process was started (``time.monotonic``).
"""

import json
import logging
import sys
import time
from pathlib import Path

import torch
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy

from mizzen_worker.config.command_line import make_parser, parse_command_line
from mizzen_worker.config.groups import EngineOptions
from mizzen_worker.config.options import Role
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.load_phase import LoadPhase
from mizzen_worker.scheduler.engine_setup import runner_options

_PROMPT = 1024


class _Facts(logging.Handler):
    """Keeps what the start logs beside its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.by_message: dict[str, dict[str, object]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        names = ("sum", "kernels", "failed", "seconds", "reason", "graphs", "kv_tokens")
        facts = {name: value for name, value in vars(record).items() if name in names}
        self.by_message[record.getMessage()] = facts


class _Phases:
    """When each phase began, and how much memory of the GPU was free then."""

    def __init__(self, begun_s: float) -> None:
        self._begun_s = begun_s
        self.begun: dict[str, float] = {}
        self.free_gib: dict[str, float] = {}

    def enter(self, phase: LoadPhase) -> None:
        self.note(phase.value)

    def note(self, name: str) -> None:
        self.begun[name] = round(time.monotonic() - self._begun_s, 2)
        self.free_gib[name] = round(torch.cuda.mem_get_info()[0] / 2**30, 2)


def main() -> None:
    folder, cache, begun_s = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    facts = _Facts()
    logging.getLogger().addHandler(facts)
    logging.getLogger().setLevel(logging.INFO)
    phases = _Phases(begun_s)
    imported_s = time.monotonic() - begun_s
    torch.cuda.init()
    phases.note("CUDA is there")
    flags = ["--device", "cuda", "--load-format", "dummy", "--compile-cache", str(cache)]
    parser = make_parser(Role.SERVE, description="", example="")
    configuration = parse_command_line(parser, Role.SERVE, ["--model", str(folder), *flags])
    options = runner_options(configuration.group(EngineOptions), folder)
    runner = load_runner(options, lambda done, total: None, phases.enter).runner
    phases.note("ready")
    driver = RunnerDriver(runner)
    prompt = [number % 1000 for number in range(_PROMPT)]
    driver.generate(Driven(1, prompt, greedy(1)))
    phases.note("first token")
    first_s = time.monotonic()
    driver.generate(Driven(2, prompt[::-1], greedy(17)))
    print(
        json.dumps(
            {
                "imported": round(imported_s, 2),
                "begun": phases.begun,
                "free GiB": phases.free_gib,
                "17 tokens s": round(time.monotonic() - first_s, 3),
                "log": facts.by_message,
            }
        )
    )


if __name__ == "__main__":
    main()
