"""Owns reading of GGUF files: metadata to ``ModelFacts``, tensors to weights.

The file is mapped, not read; block formats are decoded by ``gguf_blocks``. GGUF stores the query
and key projections of Llama models with the rows of each head in interleaved order; they are put
back into the order that the rotary kernels expect (first half, second half).
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.kernels.quantised_matrix import QuantisedMatrix
from mizzen_worker.layers.rotary import RotaryConfig
from mizzen_worker.model_executor.weights.fingerprint import content_fingerprint
from mizzen_worker.model_executor.weights.gguf_blocks import FORMAT_BY_NAME
from mizzen_worker.model_executor.weights.progress import ByteProgress
from mizzen_worker.models.model_facts import MAX_LAYERS, MAX_SIZE, ModelFacts, ModelShape
from mizzen_worker.vocabulary.gguf_metadata import GgufTensor, read_gguf_header

_ARCHITECTURE_BY_GGUF_NAME = {"llama": "LlamaForCausalLM"}

_DTYPE_BY_NAME = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

_GGUF_NAME_BY_LAYER_PART = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
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
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAME_BY_LAYER_PART[part]}"


def rotary_row_order(num_heads: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Row indices that put interleaved rows (x0, y0, x1, y1, ...) back to (x0, x1, ..., y0, y1)."""
    rows = np.arange(num_heads * head_dim, dtype=np.int64)
    return rows.reshape(num_heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoding:
    """How the values of one GGUF type lie in the file: ``columns`` of them in ``size_bytes``."""

    name: str
    columns: int
    size_bytes: int


_DENSE = (
    _Encoding(name="F32", columns=1, size_bytes=4),
    _Encoding(name="F16", columns=1, size_bytes=2),
    _Encoding(name="BF16", columns=1, size_bytes=2),
)
_ENCODING_BY_NAME = {encoding.name: encoding for encoding in _DENSE} | {
    block.name: _Encoding(name=block.name, columns=block.columns, size_bytes=block.size_bytes)
    for block in FORMAT_BY_NAME.values()
}
_NAME_BY_TYPE_NUMBER = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    30: "BF16",
}


class GgufFile:
    """One mapped GGUF file with typed access to its metadata and tensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = read_gguf_header(path)
        self._metadata = header.metadata
        self._tensor_by_name = {tensor.name: tensor for tensor in header.tensors}
        self._bytes: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors of known types."""
        known = (t for t in self._tensor_by_name.values() if t.type_number in _NAME_BY_TYPE_NUMBER)
        return sum(self._size_bytes(tensor) for tensor in known)

    def has_tensor(self, name: str) -> bool:
        """Tell whether the file has a tensor of this GGUF name."""
        return name in self._tensor_by_name

    def shape(self, name: str) -> tuple[int, ...]:
        """Outermost size first; raises ``ModelLoadError`` for a tensor that is not there."""
        return tuple(reversed(self._tensor(name).sizes))

    def read(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """Type name and raw bytes (a view of the file) of a tensor; raises ``ModelLoadError``."""
        tensor = self._tensor(name)
        size_bytes = self._size_bytes(tensor)
        if tensor.offset + size_bytes > len(self._bytes):
            message = f"{self.path}: the file ends inside tensor {name}; download it again"
            raise ModelLoadError(message)
        raw = self._bytes[tensor.offset : tensor.offset + size_bytes]
        return _NAME_BY_TYPE_NUMBER[tensor.type_number], raw

    def _tensor(self, name: str) -> GgufTensor:
        if name not in self._tensor_by_name:
            message = f"{self.path}: tensor {name} is missing; the file is incomplete or not Llama"
            raise ModelLoadError(message)
        return self._tensor_by_name[name]

    def _size_bytes(self, tensor: GgufTensor) -> int:
        type_name = _NAME_BY_TYPE_NUMBER.get(tensor.type_number)
        if type_name is None:
            known = ", ".join(_NAME_BY_TYPE_NUMBER.values())
            message = (
                f"{self.path}: tensor {tensor.name} has GGUF type number {tensor.type_number}, "
                f"which is not supported here; convert it to one of: {known}"
            )
            raise ModelLoadError(message)
        encoding = _ENCODING_BY_NAME[type_name]
        if not tensor.sizes or tensor.sizes[0] % encoding.columns:
            message = (
                f"{self.path}: tensor {tensor.name} of sizes {tensor.sizes} is not whole blocks "
                f"of {encoding.columns} ({type_name}); convert the file again"
            )
            raise ModelLoadError(message)
        return math.prod(tensor.sizes) // encoding.columns * encoding.size_bytes

    def value(self, key: str) -> object | None:
        """Metadata value, None when absent."""
        return self._metadata.get(key)

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_SIZE
    ) -> int:
        """An integer in a range that must be there unless there is a default."""
        found = self.value(key)
        if found is None and default is not None:
            return default
        if not isinstance(found, int) or not least <= found <= most:
            message = (
                f"{self.path}: metadata {key} is {found!r}, an integer from {least} to {most} is "
                "needed; download or convert the model again"
            )
            raise ModelLoadError(message)
        return found

    def number(self, key: str, default: float) -> float:
        """A number, or the default when absent."""
        found = self.value(key)
        return float(found) if isinstance(found, int | float) else default

    def vector(self, name: str) -> torch.Tensor:
        """A dense tensor in its stored type, flat; a copy."""
        type_name, raw = self.read(name)
        if type_name not in _DTYPE_BY_NAME:
            message = f"{self.path}: tensor {name} has type {type_name}; F32, F16 or BF16 is needed"
            raise ModelLoadError(message)
        return torch.from_numpy(raw.copy()).view(_DTYPE_BY_NAME[type_name])


def _require_supported_rotary(file: GgufFile, prefix: str, head_dim: int) -> RotaryConfig:
    """Rotary configuration, or ``ModelLoadError`` where the file asks for more than we do."""
    rotated = file.integer(f"{prefix}.rope.dimension_count", head_dim)
    scaling = file.value(f"{prefix}.rope.scaling.type")
    scaling = None if scaling == "none" else scaling
    if rotated != head_dim or scaling not in (None, "linear"):
        message = (
            f"{file.path}: rotary embedding over {rotated} of {head_dim} dimensions with scaling "
            f"{scaling!r} is not supported; use a model with full rotary and no or linear scaling"
        )
        raise ModelLoadError(message)
    divisors: tuple[float, ...] | None = None
    if file.has_tensor("rope_freqs.weight"):
        divisors = tuple(float(x) for x in file.vector("rope_freqs.weight"))
    return RotaryConfig(
        head_dim=head_dim,
        theta=file.number(f"{prefix}.rope.freq_base", 10000.0),
        linear_factor=file.number(f"{prefix}.rope.scaling.factor", 1.0) if scaling else 1.0,
        frequency_divisors=divisors,
    )


def _end_tokens(file: GgufFile) -> tuple[TokenId, ...]:
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    found = [file.value(key) for key in keys]
    return tuple(dict.fromkeys(TokenId(token) for token in found if isinstance(token, int)))


def read_gguf_facts(file: GgufFile) -> ModelFacts:
    """Everything known of the model; raises ``ModelLoadError`` for what we cannot run."""
    name = file.value("general.architecture")
    architecture = _ARCHITECTURE_BY_GGUF_NAME.get(str(name))
    if architecture is None:
        known = ", ".join(sorted(_ARCHITECTURE_BY_GGUF_NAME))
        message = f"{file.path}: GGUF architecture {name!r} is not supported; known are: {known}"
        raise ModelLoadError(message)
    prefix = str(name)
    if file.integer(f"{prefix}.expert_count", 0, least=0) > 0:
        message = (
            f"{file.path}: mixture-of-experts Llama files are not supported; use a dense model"
        )
        raise ModelLoadError(message)
    num_heads = file.integer(f"{prefix}.attention.head_count")
    hidden_size = file.integer(f"{prefix}.embedding_length")
    head_dim = file.integer(f"{prefix}.attention.key_length", hidden_size // num_heads)
    bos = file.value("tokenizer.ggml.bos_token_id")
    return ModelFacts(
        architecture=architecture,
        shape=ModelShape(
            num_layers=file.integer(f"{prefix}.block_count", most=MAX_LAYERS),
            hidden_size=hidden_size,
            intermediate_size=file.integer(f"{prefix}.feed_forward_length"),
            num_heads=num_heads,
            num_kv_heads=file.integer(f"{prefix}.attention.head_count_kv", num_heads),
            head_dim=head_dim,
            vocab_size=file.shape("token_embd.weight")[0],
        ),
        rotary=_require_supported_rotary(file, prefix, head_dim),
        rms_norm_eps=file.number(f"{prefix}.attention.layer_norm_rms_epsilon", 1e-6),
        context_length=file.integer(f"{prefix}.context_length"),
        tie_embeddings=not file.has_tensor("output.weight"),
        eos_token_ids=_end_tokens(file),
        bos_token_id=TokenId(bos) if isinstance(bos, int) else None,
        weight_format="gguf",
        fingerprint=content_fingerprint([file.path]),
    )


class GgufWeightSource:
    """Weights of one GGUF file under canonical names."""

    def __init__(self, file: GgufFile, shape: ModelShape, progress: ByteProgress) -> None:
        self._file = file
        self._shape = shape
        self._progress = progress

    def vector(self, name: str, length: int) -> torch.Tensor:
        """See ``WeightSource``."""
        stored = gguf_name(name)
        self._require_shape(stored, (length,))
        weights = self._file.vector(stored)
        self._progress.add(weights.nbytes)
        return weights.float()

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor | QuantisedMatrix:
        """See ``WeightSource``."""
        stored = gguf_name(name)
        self._require_shape(stored, (rows, columns))
        type_name, raw = self._file.read(stored)
        self._progress.add(raw.nbytes)
        order = self._row_order(name)
        block_format = FORMAT_BY_NAME.get(type_name)
        if block_format is None:
            weights = self._file.vector(stored).reshape(rows, columns)
            return weights if order is None else weights[torch.from_numpy(order)]
        matrix = block_format.decode(raw.reshape(rows, -1, block_format.size_bytes))
        return matrix if order is None else matrix.take_rows(order)

    def _require_shape(self, stored: str, expected: tuple[int, ...]) -> None:
        found = self._file.shape(stored)
        if found != expected:
            message = (
                f"{self._file.path}: tensor {stored} has shape {found}, "
                f"the metadata asks for {expected}"
            )
            raise ModelLoadError(message)

    def _row_order(self, name: str) -> npt.NDArray[np.int64] | None:
        """Order of rows for the two projections that GGUF permutes."""
        if name.endswith("q_proj.weight"):
            return rotary_row_order(self._shape.num_heads, self._shape.head_dim)
        if name.endswith("k_proj.weight"):
            return rotary_row_order(self._shape.num_kv_heads, self._shape.head_dim)
        return None
