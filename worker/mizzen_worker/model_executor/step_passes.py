"""Owns the cutting of a step into passes, so that logits need bounded memory; pure.

Rows that ask for prompt scores need logits at many positions. A row with more of them than there
is room for goes on in the next pass, as if it had been chunked there; all else is in the first.
"""

from dataclasses import dataclass, replace

import numpy as np

from mizzen_worker.contracts.batch import DecodeRows, ExtendRow

_NO_DECODES = DecodeRows(slots=np.empty(0, dtype=np.int32), starts=np.empty(0, dtype=np.int32))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPass:
    """Rows, or parts of them, that run together; ``origins`` are the indices of the extends."""

    extends: tuple[ExtendRow, ...]
    origins: tuple[int, ...]
    decodes: DecodeRows


def _num_targets(row: ExtendRow) -> int:
    return 0 if row.target_ids is None else len(row.target_ids)


def _cut(row: ExtendRow, num_targets: int) -> tuple[ExtendRow, ExtendRow]:
    """Split behind the row's first ``num_targets`` targets, which are not all of them."""
    if row.target_ids is None:
        raise ValueError(row)
    num_new = row.target_start + num_targets - row.start
    first = replace(
        row,
        num_new=num_new,
        token_ids=row.token_ids[:num_new],
        is_sampled=False,
        target_ids=row.target_ids[:num_targets],
    )
    rest = replace(
        row,
        start=row.start + num_new,
        num_new=row.num_new - num_new,
        token_ids=row.token_ids[num_new:],
        target_start=row.target_start + num_targets,
        target_ids=row.target_ids[num_targets:],
    )
    return first, rest


def plan_passes(
    extends: tuple[ExtendRow, ...], decodes: DecodeRows, *, max_targets: int
) -> tuple[ModelPass, ...]:
    """At least one pass; each scores at most ``max_targets`` positions. Order of rows is kept."""
    passes: list[ModelPass] = []
    waiting = list(enumerate(extends))
    while waiting or not passes:
        room = max_targets
        taken: list[tuple[int, ExtendRow]] = []
        later: list[tuple[int, ExtendRow]] = []
        for origin, row in waiting:
            num_targets = _num_targets(row)
            if num_targets <= room:
                taken.append((origin, row))
                room -= num_targets
            elif room == 0:
                later.append((origin, row))
            else:
                first, rest = _cut(row, room)
                taken.append((origin, first))
                later.append((origin, rest))
                room = 0
        passes.append(
            ModelPass(
                extends=tuple(row for _, row in taken),
                origins=tuple(origin for origin, _ in taken),
                decodes=_NO_DECODES if passes else decodes,
            )
        )
        waiting = later
    return tuple(passes)
