"""One life of a rank from exec to its first token, as a program of its own: prints JSON.

``python -m tests.gpu.measure.start_child FOLDER CACHE BEGUN_S``: a folder with a config.json, the
folder of compiled kernels, and when the process was started (``time.monotonic``). It begins as the
process of a rank does (``scheduler/process.py``); the first token comes through the scheduler.
"""

import functools
import json
import logging
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from mizzen_worker.model_executor.head_start import begin_beside_imports

_PROMPT = 1024


class _Facts(logging.Handler):
    """Keeps what the start logs beside its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.by_message: dict[str, dict[str, object]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        names = ("sum", "kernels", "failed", "seconds", "of_prefills", "reason", "graphs")
        facts = {name: value for name, value in vars(record).items() if name in names}
        self.by_message[record.getMessage()] = facts


class _Parts:
    """Seconds in some functions, by name, whatever called them; and how often."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()

    def time(self, owner: type, function: str) -> None:
        original: Any = getattr(owner, function)

        @functools.wraps(original)
        def timed(*arguments: object, **named: object) -> object:
            begun_s = time.perf_counter()
            try:
                return original(*arguments, **named)
            finally:
                self.seconds[function] += time.perf_counter() - begun_s
                self.calls[function] += 1

        setattr(owner, function, timed)

    def facts(self) -> dict[str, list[float]]:
        return {
            name: [round(seconds, 3), self.calls[name]] for name, seconds in self.seconds.items()
        }


def main() -> None:
    folder, cache, begun_s = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    began_s = time.monotonic()
    begin_beside_imports("cuda")
    import mizzen_worker.scheduler.rank  # noqa: F401 - what is timed here

    imported_s = time.monotonic()
    facts = _Facts()
    logging.getLogger().addHandler(facts)
    logging.getLogger().setLevel(logging.INFO)
    from tests.gpu.measure.start_rank import first_token

    parts = _Parts()
    started = first_token(folder, cache, _PROMPT, parts.time)
    begun = {name: round(at_s - begun_s, 2) for name, at_s in started.begun_s.items()}
    print(
        json.dumps(
            {
                "began": round(began_s - begun_s, 2),
                "imported": round(imported_s - begun_s, 2),
                "begun": begun,
                "free GiB": started.free_gib,
                "compiled here": started.compiled,
                "parts": parts.facts(),
                "log": facts.by_message,
            }
        )
    )


if __name__ == "__main__":
    main()
