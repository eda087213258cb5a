"""``python -m tests.gpu.measure PART ...``: check and time single kernels on the GPU here.

Each part is a module of this package with a function ``measure(readings)``; it checks before it
times, and keeps to about a minute. A part that fails is told, and the others go on.
"""

import argparse
import importlib
import sys
import traceback
from pathlib import Path

import torch
from tests.gpu.measure.harness import Readings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.measure")
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU here")
    failed = []
    for part in arguments.parts:
        readings = Readings(arguments.out / f"measure-{part}.json")
        try:
            importlib.import_module(f"tests.gpu.measure.{part}").measure(readings)
        except Exception:  # noqa: BLE001 - the other parts still run; the status tells
            traceback.print_exc()
            failed.append(part)
        readings.write()
        print(f"-- {part}: {readings.seconds():.1f} s", flush=True)
    if failed:
        print("failed:", ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
