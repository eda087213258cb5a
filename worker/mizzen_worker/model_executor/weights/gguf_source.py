"""Owns the weights of a GGUF file under canonical names; decodes no block itself.

Some architectures' files hold the query and key projections with the rows of each head in
interleaved order; they are put back into the order that the rotary kernels expect (first half,
second half).
"""

import numpy as np
import numpy.typing as npt
import torch

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.kernels.quantised_matrix import QuantisedMatrix
from mizzen_worker.model_executor.weights.gguf_blocks import FORMAT_BY_NAME, BlockFormat
from mizzen_worker.model_executor.weights.gguf_facts import ROTARY_FACTORS
from mizzen_worker.model_executor.weights.gguf_file import GgufFile
from mizzen_worker.model_executor.weights.gguf_shape import architecture_in
from mizzen_worker.model_executor.weights.progress import ByteProgress
from mizzen_worker.models.model_facts import ModelShape
from mizzen_worker.models.weight_source import WHOLE, Part, span

_GGUF_NAME_BY_LAYER_PART = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GGUF_NAME_BY_NAME = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a canonical weight name."""
    if name in _GGUF_NAME_BY_NAME:
        return _GGUF_NAME_BY_NAME[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_GGUF_NAME_BY_LAYER_PART[part]}.{kind}"


def rotary_row_order(num_heads: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Row indices that put interleaved rows (x0, y0, x1, y1, ...) back to (x0, x1, ..., y0, y1)."""
    rows = np.arange(num_heads * head_dim, dtype=np.int64)
    return rows.reshape(num_heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


class GgufWeightSource:
    """Weights of one GGUF file under canonical names."""

    def __init__(self, file: GgufFile, shape: ModelShape, progress: ByteProgress) -> None:
        self._file = file
        self._shape = shape
        self._progress = progress
        self._is_interleaved = architecture_in(file).is_interleaved_in_gguf
        self._taken: set[str] = {ROTARY_FACTORS}

    def vector(self, name: str, length: int, part: range | None = None) -> torch.Tensor:
        """See ``PartialWeightSource``."""
        stored = gguf_name(name)
        self._require_shape(stored, (length,))
        weights = self._file.vector(stored).float()
        order = self._row_order(name)
        own = (weights if order is None else weights[torch.from_numpy(order)])[span(part)]
        self._progress.add(own.nbytes)
        return own

    def matrix(
        self, name: str, rows: int, columns: int, part: Part = WHOLE
    ) -> torch.Tensor | QuantisedMatrix:
        """See ``PartialWeightSource``."""
        stored = gguf_name(name)
        self._require_shape(stored, (rows, columns))
        type_name, raw = self._file.read(stored)
        block_format = FORMAT_BY_NAME.get(type_name)
        # Of what is not asked for, nothing is read: the file is mapped.
        own = raw.reshape(rows, -1)[self._rows(name, part.rows)]
        if block_format is None:
            value_bytes = own.shape[1] // columns
            asked = part.columns or range(columns)
            chosen = own[:, asked.start * value_bytes : asked.stop * value_bytes]
            dense = self._file.dense(stored, chosen)
            self._progress.add(dense.nbytes)
            return dense
        blocks = own.reshape(len(own), -1, block_format.size_bytes)
        if part.columns is None:
            self._progress.add(blocks.nbytes)
            return block_format.decode(blocks)
        return self._columns(stored, block_format, blocks, part.columns)

    def _columns(
        self, stored: str, block_format: BlockFormat, blocks: npt.NDArray[np.uint8], columns: range
    ) -> QuantisedMatrix:
        """Those columns; blocks of the file may be cut where their smaller ones are not."""
        width = block_format.columns
        first, after = columns.start // width, -(-columns.stop // width)
        chosen = blocks[:, first:after]
        self._progress.add(chosen.nbytes)
        try:
            return block_format.decode(chosen).take_columns(
                columns.start - first * width, columns.stop - first * width
            )
        except ValueError as error:
            message = (
                f"{self._file.path}: tensor {stored} ({block_format.name}) cannot be divided among "
                f"ranks: {error}; lower --tensor-parallel-size, or use an unquantised model"
            )
            raise ModelLoadError(message) from error

    def _rows(self, name: str, part: range | None) -> slice | npt.NDArray[np.int64]:
        order = self._row_order(name)
        return span(part) if order is None else order[span(part)]

    def require_all_taken(self) -> None:
        """Raise ``ModelLoadError`` for a tensor that the model did not ask for."""
        for name in self._file.tensor_names():
            if name not in self._taken:
                message = (
                    f"{self._file.path}: tensor {name} has no place in the architecture that the "
                    "file names; convert the model again"
                )
                raise ModelLoadError(message)

    def _require_shape(self, stored: str, expected: tuple[int, ...]) -> None:
        self._taken.add(stored)
        found = self._file.shape(stored)
        if found != expected:
            message = (
                f"{self._file.path}: tensor {stored} has shape {found}, "
                f"the metadata asks for {expected}"
            )
            raise ModelLoadError(message)

    def _row_order(self, name: str) -> npt.NDArray[np.int64] | None:
        """Order of rows for the two projections that some architectures' files permute."""
        if not self._is_interleaved:
            return None
        if ".q_proj." in name:
            return rotary_row_order(self._shape.num_heads, self._shape.head_dim)
        if ".k_proj." in name:
            return rotary_row_order(self._shape.num_kv_heads, self._shape.head_dim)
        return None
