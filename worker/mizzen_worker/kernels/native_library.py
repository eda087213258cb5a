"""Owns the question whether the native CPU kernels are installed; everything works without them.

The extension is optional at build time (no compiler: plain torch). Nothing else imports
``_native``.
"""

from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

if find_spec("mizzen_worker.kernels._native") is not None:
    from mizzen_worker.kernels import _native

    INSTRUCTION_SETS: tuple[str, ...] = tuple(_native.instruction_sets())
    """What this processor can run, best first; empty when the extension is not installed."""
else:
    INSTRUCTION_SETS = ()

Words = npt.NDArray[np.int64]


def choose_tokens(instruction_set: str, choice: Words) -> None:
    """Choose a token per row; ``choice`` holds the fields of ``Choice`` in sampling.h.

    Releases the interpreter's lock. Raises ``MemoryError``.
    """
    _native.choose_tokens(instruction_set, choice)


def penalise_rows(instruction_set: str, penalties: Words) -> None:
    """Penalise logits in place; ``penalties`` holds the fields of ``Penalties`` in sampling.h."""
    _native.penalise_rows(instruction_set, penalties)


class NativeProgram:
    """One program of the native library; owns its threads and buffers."""

    def __init__(self, instruction_set: str, num_threads: int, records: tuple[Words, ...]) -> None:
        """``records``: settings, layers, weights, buffer widths, operations (see program.h)."""
        settings, layers, weights, widths, operations = records
        self._program = _native.create_program(
            instruction_set, num_threads, settings, layers, weights, widths, operations
        )

    def run(self, step: Words) -> None:
        """Run one step; releases the interpreter's lock. Raises ``MemoryError``."""
        _native.run_program(self._program, step)

    def start(self, step: Words) -> None:
        """Begin a step that ``run_operations`` runs in parts. Raises ``MemoryError``."""
        _native.start_program(self._program, step)

    def run_operations(self, first: int, after: int) -> None:
        """Run operations [first, after); ranges follow each other. See ``run``."""
        _native.run_operations(self._program, first, after)

    def rows(self, buffer: int, num_rows: int) -> npt.NDArray[np.float32]:
        """The first rows of a buffer, flat: each as wide as the buffer's, up to a multiple of 16.

        A view, valid until the next ``start``.
        """
        view = _native.program_rows(self._program, buffer, num_rows)
        return np.frombuffer(view, dtype=np.float32)
