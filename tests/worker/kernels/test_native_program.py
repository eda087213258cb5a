"""A native program in parts does what it does whole; rows can be changed between its operations."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.worker.kernels.native_harness import (
    EVERY_INSTRUCTION_SET,
    all_rows,
    finish,
    plain_head,
    recorder_of,
)

from mizzen_worker.layers.native_operations import NativeStepProgram, NativeWeightPreparer
from mizzen_worker.memory.forward_batch import ForwardBatch

SIZE, ROWS = 20, 5


class Doubling:
    """Ranks of which each has the same: their sum is twice what one has."""

    is_leader = True

    def __init__(self) -> None:
        self.seen: list[torch.Size] = []

    def own_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        return token_ids

    def sum_embedded(self, rows: torch.Tensor, token_ids: torch.Tensor) -> None:
        assert len(rows) == len(token_ids)
        self.sum(rows)

    def sum(self, values: torch.Tensor) -> None:
        self.seen.append(values.shape)
        values *= 2

    def whole_logits(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


def program_of(instruction_set: str, ranks: Doubling | None, *, has_residual: bool = True):
    """Embed, add a projection of the embedded rows to them, and tell the rows."""
    recorder = recorder_of()
    recorder._has_residual = has_residual
    prepare = NativeWeightPreparer()
    table = torch.arange(ROWS * SIZE, dtype=torch.float32).view(ROWS, SIZE)
    hidden = recorder.embed(prepare.linear([table]))
    copied = recorder.select_sampled(hidden)
    hidden = recorder.linear_add(copied, prepare.linear([torch.eye(SIZE) * 3]), copied)
    plain_head(recorder, hidden, SIZE)
    program = finish(recorder, instruction_set)
    program._ranks = ranks
    return program, table


@EVERY_INSTRUCTION_SET
def test_sums_between_operations_change_what_follows(instruction_set: str) -> None:
    ranks = Doubling()
    program, table = program_of(instruction_set, ranks)
    alone, _ = program_of(instruction_set, None)
    assert torch.equal(alone.run(all_rows(ROWS)), table * 4)
    # Twice the embedding, and twice what that and its projection add up to.
    assert torch.equal(program.run(all_rows(ROWS)), table * 16)
    # Rows are as wide as a multiple of 16.
    assert ranks.seen == [(ROWS, 32), (ROWS, 32)]


@EVERY_INSTRUCTION_SET
def test_a_rank_without_the_residual_adds_its_projection_alone(instruction_set: str) -> None:
    program, table = program_of(instruction_set, Doubling(), has_residual=False)
    assert torch.equal(program.run(all_rows(ROWS)), table * 12)


@EVERY_INSTRUCTION_SET
def test_more_rows_move_the_buffers_and_none_are_summed_where_none_is_sampled(
    instruction_set: str,
) -> None:
    ranks = Doubling()
    program, table = program_of(instruction_set, ranks)
    for num_tokens in (1, ROWS, 2):
        assert torch.equal(program.run(all_rows(num_tokens)), table[:num_tokens] * 16)
    nothing = torch.empty(0, dtype=torch.int64)
    program.run(_with_samples(all_rows(3), nothing))
    assert ranks.seen[-1] == (3, 32)
    assert len(ranks.seen) == 7


def _with_samples(batch: ForwardBatch, sampled: torch.Tensor) -> ForwardBatch:
    return dataclasses.replace(batch, sampled_tokens=sampled)


@EVERY_INSTRUCTION_SET
def test_operations_and_rows_that_are_not_there_are_refused(instruction_set: str) -> None:
    program: NativeStepProgram = program_of(instruction_set, None)[0]
    program.run(all_rows(2))
    native = program._program
    for first, after in ((-1, 2), (3, 2), (0, 99)):
        with pytest.raises(ValueError, match=f"operations {first} to {after} of"):
            native.run_operations(first, after)
    for buffer, rows in ((9, 1), (-1, 1), (0, 99), (0, -1)):
        with pytest.raises(ValueError, match=f"{rows} rows of buffer {buffer}: there are"):
            native.rows(buffer, rows)
    assert native.rows(0, 0).shape == (0,)
    assert native.rows(0, 2).dtype == np.float32
