"""Types of the optional native module; its code is in ``native/``."""

import numpy as np
import numpy.typing as npt

class _Program: ...

_Words = npt.NDArray[np.int64]

def instruction_sets() -> list[str]: ...
def create_program(
    instruction_set: str,
    num_threads: int,
    settings: _Words,
    layers: _Words,
    weights: _Words,
    buffer_widths: _Words,
    operations: _Words,
    /,
) -> _Program: ...
def choose_tokens(instruction_set: str, choice: _Words, /) -> None: ...
def penalise_rows(instruction_set: str, penalties: _Words, /) -> None: ...
def run_program(program: _Program, step: _Words, /) -> None: ...
