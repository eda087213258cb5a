"""Owns the recording of a model's operations as one native program, and the running of it.

The CPU's counterpart of a captured graph: the model's forward is called once with a recorder, and
every step afterwards is a single native call for any number of tokens (with ranks that share the
model, one between each two of their sums). Holds the packed weights and everything else that the
program points to. Needs a head size that is a multiple of 16.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import torch

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.kernels.native_library import NativeProgram, Words
from mizzen_worker.kernels.packing import LANES, Bytes, pack_dense, pack_quantised
from mizzen_worker.kernels.quantised_matrix import QuantisedMatrix
from mizzen_worker.layers.operations import Experts, HeadNorms, StoredMatrix
from mizzen_worker.layers.ranks import Ranks
from mizzen_worker.layers.stored_matrix import as_tensor
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch

_STORAGE_BY_DTYPE = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
_LOGITS = -1
_NO_EXPERTS = "the native kernels compute no mixture of experts; use dense weights in plain torch"


class _Opcode(IntEnum):
    """As in program.h."""

    EMBED = 0
    LINEAR = 1
    ROTARY_STORE = 2
    ATTEND = 3
    SELECT = 4


class Prologue(IntEnum):
    """What a linear layer does to its input first; as in program.h."""

    PLAIN = 0
    NORM = 1
    SILU_MULTIPLY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeWeight:
    """A packed matrix, or the float32 vector of a norm (then without ``words``).

    ``words`` are the fields of ``Weight`` in kernels.h between its pointers. ``bias`` float32 is
    padded to whole tiles of outputs. ``input_norm`` float32 stands before the projection.
    """

    data: Bytes
    words: tuple[int, ...]
    num_outputs: int
    bias: Bytes | None = None
    input_norm: "NativeWeight | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeValue:
    """Rows in a buffer, and what the next linear layer must do to them first."""

    buffer: int
    prologue: Prologue
    is_sampled: bool


def _packed_bias(bias: torch.Tensor) -> Bytes:
    padded = np.zeros(-(-len(bias) // LANES) * LANES, dtype=np.float32)
    padded[: len(bias)] = bias.float().numpy()
    return padded.view(np.uint8)


class NativeWeightPreparer:
    """Packs weights: quantised ones as they are stored, dense ones in their own type."""

    def linear(
        self, parts: Sequence[StoredMatrix], bias: torch.Tensor | None = None
    ) -> NativeWeight:
        """See ``WeightPreparer``."""
        packed_bias = None if bias is None else _packed_bias(bias)
        quantised = [part for part in parts if isinstance(part, QuantisedMatrix)]
        num_outputs = sum(int(part.shape[0]) for part in parts)
        num_columns = int(parts[0].shape[1])
        if len(quantised) == len(parts):
            data, chosen, offset = pack_quantised(quantised)
            words = (
                *(0, num_outputs, num_columns, chosen.bits, chosen.block),
                *(int(chosen.has_half_scales), int(chosen.has_minimums), offset),
            )
            return NativeWeight(data=data, words=words, num_outputs=num_outputs, bias=packed_bias)
        # Of different types: torch promotes without rounding.
        dense = torch.cat([as_tensor(part) for part in parts])
        if dense.dtype not in _STORAGE_BY_DTYPE:
            dense = dense.float()
        raw = dense.view(torch.int16) if dense.element_size() == 2 else dense
        words = (_STORAGE_BY_DTYPE[dense.dtype], num_outputs, num_columns, 0, 1, 0, 0, 0)
        data = pack_dense(raw.numpy())
        return NativeWeight(data=data, words=words, num_outputs=num_outputs, bias=packed_bias)

    def gate_up(
        self, gate: StoredMatrix, up: StoredMatrix, bias: torch.Tensor | None = None
    ) -> NativeWeight:
        """See ``WeightPreparer``."""
        return self.linear([gate, up], bias)

    def expert_gate_up(
        self,
        pairs: Iterable[tuple[StoredMatrix, StoredMatrix]],  # noqa: ARG002
        num_experts: int,  # noqa: ARG002
    ) -> NativeWeight:
        """See ``WeightPreparer``; refused."""
        raise ConfigError(_NO_EXPERTS)

    def expert_down(
        self,
        matrices: Iterable[StoredMatrix],  # noqa: ARG002
        num_experts: int,  # noqa: ARG002
    ) -> NativeWeight:
        """See ``WeightPreparer``; refused."""
        raise ConfigError(_NO_EXPERTS)

    def normed(self, weight: NativeWeight, norm: torch.Tensor) -> NativeWeight:
        """See ``WeightPreparer``."""
        return replace(weight, input_norm=self.norm(norm))

    def unnormed(self, weight: NativeWeight) -> NativeWeight:
        """See ``WeightPreparer``."""
        return weight

    def norm(self, weight: torch.Tensor) -> NativeWeight:
        """See ``WeightPreparer``."""
        data = weight.float().contiguous().numpy().copy().view(np.uint8)
        return NativeWeight(data=data, words=(), num_outputs=len(weight))


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSettings:
    """What a program needs beside its operations; ``table`` as of ``rotary_table``, float32."""

    instruction_set: str
    num_threads: int
    num_heads: int
    table: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSum:
    """Rows that ranks add up, behind so many operations."""

    num_operations: int
    value: NativeValue


class NativeRecorder:
    """An ``Operations`` that writes down what is asked of it.

    ``sums``, in order: the embedding's rows, then those of every projection into the residual.
    One rank has the residual in its summand (``has_residual``), the others only their projection.
    """

    def __init__(self, pool: DevicePool, num_heads: int, *, has_residual: bool = True) -> None:
        self._pool = pool
        self._num_heads = num_heads
        self._has_residual = has_residual
        self.sums: list[RankSum] = []
        self._buffer_by_role: dict[str, int] = {}
        self.widths: list[int] = []
        self.weights: list[NativeWeight] = []
        self.operations: list[tuple[int, ...]] = []

    def embed(self, embedding: NativeWeight) -> NativeValue:
        """See ``Operations``."""
        hidden = self._buffer("hidden", embedding.words[2])
        self._record(_Opcode.EMBED, self._weight(embedding), hidden)
        return self._summed(NativeValue(buffer=hidden, prologue=Prologue.PLAIN, is_sampled=False))

    def norm_qkv_rotary_store(
        self, hidden: NativeValue, qkv: NativeWeight, layer: int
    ) -> NativeValue:
        """See ``Operations``."""
        output = self._qkv(hidden, qkv)
        self._record(_Opcode.ROTARY_STORE, output, layer, 0, 0)
        return NativeValue(buffer=output, prologue=Prologue.PLAIN, is_sampled=False)

    def norm_qkv_head_norm_rotary_store(
        self,
        hidden: NativeValue,
        qkv: NativeWeight,
        heads: HeadNorms[NativeWeight],
        layer: int,
    ) -> NativeValue:
        """See ``Operations``."""
        output = self._qkv(hidden, qkv)
        pointers = (self._pointer(heads.query), self._pointer(heads.key))
        self._record(_Opcode.ROTARY_STORE, output, layer, *pointers)
        return NativeValue(buffer=output, prologue=Prologue.PLAIN, is_sampled=False)

    def attend(self, queries: NativeValue, layer: int, window: int | None) -> NativeValue:
        """See ``Operations``."""
        output = self._buffer("attended", self._num_heads * self._pool.shape.head_dim)
        self._record(_Opcode.ATTEND, queries.buffer, output, layer, window or 0)
        return NativeValue(buffer=output, prologue=Prologue.PLAIN, is_sampled=False)

    def linear_add(
        self, value: NativeValue, weight: NativeWeight, residual: NativeValue
    ) -> NativeValue:
        """See ``Operations``; in place of the residual."""
        self._linear(value, weight, residual.buffer, is_added=self._has_residual)
        return self._summed(residual)

    def norm_gate_up_silu(self, hidden: NativeValue, gate_up: NativeWeight) -> NativeValue:
        """See ``Operations``; the product is formed by the linear layer that reads it."""
        output = self._buffer("gate_up", gate_up.num_outputs)
        self._linear(hidden, gate_up, output, norm=gate_up.input_norm)
        return NativeValue(
            buffer=output, prologue=Prologue.SILU_MULTIPLY, is_sampled=hidden.is_sampled
        )

    def norm_experts_add(
        self,
        hidden: NativeValue,  # noqa: ARG002
        experts: Experts[NativeWeight],  # noqa: ARG002
    ) -> NativeValue:
        """See ``Operations``; refused."""
        raise ConfigError(_NO_EXPERTS)

    def select_sampled(self, value: NativeValue) -> NativeValue:
        """See ``Operations``."""
        width = self.widths[value.buffer]
        output = self._buffer(f"selected {value.buffer}", width)
        self._record(_Opcode.SELECT, value.buffer, output)
        return NativeValue(buffer=output, prologue=value.prologue, is_sampled=True)

    def norm_head(self, hidden: NativeValue, norm: NativeWeight, head: NativeWeight) -> NativeValue:
        """See ``Operations``; goes to the step's own logits."""
        self._linear(hidden, head, _LOGITS, norm=norm)
        return NativeValue(buffer=_LOGITS, prologue=Prologue.PLAIN, is_sampled=True)

    def _summed(self, value: NativeValue) -> NativeValue:
        self.sums.append(RankSum(num_operations=len(self.operations), value=value))
        return value

    def _linear(
        self,
        value: NativeValue,
        weight: NativeWeight,
        output: int,
        *,
        norm: NativeWeight | None = None,
        is_added: bool = False,
    ) -> None:
        prologue = value.prologue if norm is None else Prologue.NORM
        norm_pointer = 0 if norm is None else self._pointer(norm)
        index = self._weight(weight)
        flags = (int(is_added), int(value.is_sampled))
        self._record(_Opcode.LINEAR, prologue, value.buffer, norm_pointer, index, output, *flags)

    def _record(self, opcode: _Opcode, *fields: int) -> None:
        self.operations.append((opcode, *fields, *([0] * (7 - len(fields)))))

    def _buffer(self, role: str, width: int) -> int:
        """One buffer per role: every layer uses the same ones."""
        if role not in self._buffer_by_role:
            self._buffer_by_role[role] = len(self.widths)
            self.widths.append(width)
        return self._buffer_by_role[role]

    def _qkv(self, hidden: NativeValue, qkv: NativeWeight) -> int:
        output = self._buffer("qkv", qkv.num_outputs)
        self._linear(hidden, qkv, output, norm=qkv.input_norm)
        return output

    def _pointer(self, norm: NativeWeight) -> int:
        """Address of a norm's weight, which is kept alive."""
        self._weight(norm)
        return int(norm.data.ctypes.data)

    def _weight(self, weight: NativeWeight) -> int:
        for index, known in enumerate(self.weights):
            if known is weight:
                return index
        self.weights.append(weight)
        return len(self.weights) - 1


def _words(values: Sequence[Sequence[int]]) -> Words:
    return np.array(values, dtype=np.int64).reshape(-1)


class NativeStepProgram:
    """A recorded forward, ready to run."""

    def __init__(
        self,
        recorder: NativeRecorder,
        pool: DevicePool,
        settings: NativeSettings,
        ranks: Ranks | None = None,
    ) -> None:
        """``ranks`` None: one rank has everything."""
        self._kept_alive = (pool, settings)
        self._recorder = recorder
        self._ranks = ranks
        self._num_logits = recorder.weights[recorder.operations[-1][4]].num_outputs
        records = (_settings_words(pool, settings), *_recorded_words(recorder, pool))
        self._program = NativeProgram(settings.instruction_set, settings.num_threads, records)

    def run(self, batch: ForwardBatch) -> torch.Tensor:
        """Logits [num_sampled, vocab] float32; see ``Forward``."""
        num_sampled = len(batch.sampled_tokens)
        padded = -(-self._num_logits // LANES) * LANES
        logits = torch.empty(num_sampled, padded, dtype=torch.float32)
        if self._ranks is None:
            self._program.run(_step_words(batch, batch.token_ids, logits))
            return logits[:, : self._num_logits]
        own_ids = self._ranks.own_ids(batch.token_ids)
        self._program.start(_step_words(batch, own_ids, logits))
        self._run_with(self._ranks, batch)
        return self._ranks.whole_logits(logits[:, : self._num_logits])

    def _run_with(self, ranks: Ranks, batch: ForwardBatch) -> None:
        """Run a step that was started, adding up over ranks between its operations."""
        num_done = 0
        for index, summed in enumerate(self._recorder.sums):
            self._program.run_operations(num_done, summed.num_operations)
            num_done = summed.num_operations
            value = summed.value
            num_rows = len(batch.sampled_tokens) if value.is_sampled else batch.num_tokens
            if not num_rows:
                continue
            rows = torch.from_numpy(self._program.rows(value.buffer, num_rows)).view(num_rows, -1)
            if index == 0:
                ranks.sum_embedded(rows, batch.token_ids)
            else:
                ranks.sum(rows)
        self._program.run_operations(num_done, len(self._recorder.operations))


def _settings_words(pool: DevicePool, settings: NativeSettings) -> Words:
    shape = pool.shape
    is_bfloat16 = int(pool.keys(0).dtype == torch.bfloat16)
    numbers = (settings.num_heads, shape.num_kv_heads, shape.head_dim, shape.page_size)
    eps_bits = int(np.float64(settings.eps).view(np.int64))
    return _words([(*numbers, is_bfloat16, settings.table.data_ptr(), eps_bits)])


def _recorded_words(recorder: NativeRecorder, pool: DevicePool) -> tuple[Words, ...]:
    """Layers, weights, buffer widths, operations."""
    layers = [
        (pool.keys(layer).data_ptr(), pool.values(layer).data_ptr())
        for layer in range(pool.shape.num_layers)
    ]
    weights = [
        (
            int(weight.data.ctypes.data),
            *(weight.words or (1, 0, 0, 0, 1, 0, 0, 0)),
            0 if weight.bias is None else int(weight.bias.ctypes.data),
        )
        for weight in recorder.weights
    ]
    return (
        _words(layers),
        _words(weights),
        _words([recorder.widths]),
        _words(recorder.operations),
    )


def _step_words(batch: ForwardBatch, token_ids: torch.Tensor, logits: torch.Tensor) -> Words:
    """See ``Step`` in program.h; its tensors must outlive the step."""
    step = (
        token_ids.data_ptr(),
        batch.positions.data_ptr(),
        batch.kv_locations.data_ptr(),
        batch.page_table.data_ptr(),
        batch.page_table.shape[1],
        batch.row_slots.data_ptr(),
        batch.sampled_tokens.data_ptr(),
        int(batch.row_starts.ctypes.data),
        int(batch.row_lengths.ctypes.data),
        batch.num_tokens,
        batch.num_rows,
        len(batch.sampled_tokens),
        logits.data_ptr(),
    )
    return np.array(step, dtype=np.int64)
