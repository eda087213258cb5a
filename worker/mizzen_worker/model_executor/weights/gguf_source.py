"""Owns reading of GGUF files: metadata to ``ModelFacts``, tensors to weights.

The file is mapped, not read; block formats are decoded by ``gguf_blocks``. GGUF stores the query
and key projections of Llama models with the rows of each head in interleaved order; they are put
back into the order that the rotary kernels expect (first half, second half).
"""

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.kernels.quantised_matrix import QuantisedMatrix
from mizzen_worker.layers.rotary import RotaryConfig
from mizzen_worker.model_executor.weights.fingerprint import content_fingerprint, text_fingerprint
from mizzen_worker.model_executor.weights.gguf_blocks import FORMAT_BY_NAME
from mizzen_worker.model_executor.weights.progress import ByteProgress
from mizzen_worker.models.model_facts import ModelFacts, ModelShape

_ARCHITECTURE_BY_GGUF_NAME = {"llama": "LlamaForCausalLM"}

_DENSE_TYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16)}

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


class GgufFile:
    """One opened GGUF file with typed access to its metadata."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            message = f"{path}: not a readable GGUF file ({error}); download it again"
            raise ModelLoadError(message) from error
        self._tensor_by_name = {tensor.name: tensor for tensor in self._reader.tensors}

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(int(tensor.n_bytes) for tensor in self._reader.tensors)

    def has_tensor(self, name: str) -> bool:
        """Tell whether the file has a tensor of this GGUF name."""
        return name in self._tensor_by_name

    def tensor(self, name: str) -> "gguf.ReaderTensor":
        """The tensor of this GGUF name; raises ``ModelLoadError``."""
        if name not in self._tensor_by_name:
            message = f"{self.path}: tensor {name} is missing; the file is incomplete or not Llama"
            raise ModelLoadError(message)
        return self._tensor_by_name[name]

    def value(self, key: str) -> object | None:
        """Metadata value, None when absent."""
        field = self._reader.fields.get(key)
        return None if field is None else field.contents()

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer that must be there unless there is a default."""
        found = self.value(key)
        if found is None and default is not None:
            return default
        if not isinstance(found, int):
            message = f"{self.path}: metadata {key} is {found!r}, an integer is needed"
            raise ModelLoadError(message)
        return found

    def number(self, key: str, default: float) -> float:
        """A number, or the default when absent."""
        found = self.value(key)
        return float(found) if isinstance(found, int | float) else default

    def strings(self, key: str) -> list[str]:
        """A list of strings, empty when absent."""
        found = self.value(key)
        return [str(item) for item in found] if isinstance(found, list) else []


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
        divisors = tuple(float(x) for x in np.asarray(file.tensor("rope_freqs.weight").data))
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
    if file.integer(f"{prefix}.expert_count", 0) > 0:
        message = (
            f"{file.path}: mixture-of-experts Llama files are not supported; use a dense model"
        )
        raise ModelLoadError(message)
    num_heads = file.integer(f"{prefix}.attention.head_count")
    hidden_size = file.integer(f"{prefix}.embedding_length")
    head_dim = file.integer(f"{prefix}.attention.key_length", hidden_size // num_heads)
    tokens = file.strings("tokenizer.ggml.tokens")
    bos = file.value("tokenizer.ggml.bos_token_id")
    return ModelFacts(
        architecture=architecture,
        shape=ModelShape(
            num_layers=file.integer(f"{prefix}.block_count"),
            hidden_size=hidden_size,
            intermediate_size=file.integer(f"{prefix}.feed_forward_length"),
            num_heads=num_heads,
            num_kv_heads=file.integer(f"{prefix}.attention.head_count_kv", num_heads),
            head_dim=head_dim,
            vocab_size=int(file.tensor("token_embd.weight").shape[1]),
        ),
        rotary=_require_supported_rotary(file, prefix, head_dim),
        rms_norm_eps=file.number(f"{prefix}.attention.layer_norm_rms_epsilon", 1e-6),
        context_length=file.integer(f"{prefix}.context_length"),
        tie_embeddings=not file.has_tensor("output.weight"),
        eos_token_ids=_end_tokens(file),
        bos_token_id=TokenId(bos) if isinstance(bos, int) else None,
        weight_format="gguf",
        fingerprint=content_fingerprint([file.path]),
        tokenizer_identity=text_fingerprint(tokens + file.strings("tokenizer.ggml.merges")),
    )


class GgufWeightSource:
    """Weights of one GGUF file under canonical names."""

    def __init__(self, file: GgufFile, shape: ModelShape, progress: ByteProgress) -> None:
        self._file = file
        self._shape = shape
        self._progress = progress

    def vector(self, name: str, length: int) -> torch.Tensor:
        """See ``WeightSource``."""
        tensor = self._file.tensor(gguf_name(name))
        self._require_shape(tensor, (length,))
        weights = self._dense(tensor)
        self._progress.add(int(tensor.n_bytes))
        return weights.float()

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor | QuantisedMatrix:
        """See ``WeightSource``."""
        tensor = self._file.tensor(gguf_name(name))
        self._require_shape(tensor, (rows, columns))
        weights = self._quantised_or_dense(tensor, rows)
        self._progress.add(int(tensor.n_bytes))
        order = self._row_order(name)
        if order is None:
            return weights
        if isinstance(weights, QuantisedMatrix):
            return weights.take_rows(order)
        return weights[torch.from_numpy(order)]

    def _require_shape(self, tensor: "gguf.ReaderTensor", expected: tuple[int, ...]) -> None:
        found = tuple(int(size) for size in reversed(tensor.shape))
        if found != expected:
            message = (
                f"{self._file.path}: tensor {tensor.name} has shape {found}, "
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

    def _quantised_or_dense(
        self, tensor: "gguf.ReaderTensor", rows: int
    ) -> torch.Tensor | QuantisedMatrix:
        block_format = FORMAT_BY_NAME.get(tensor.tensor_type.name)
        if block_format is None:
            return self._dense(tensor).reshape(rows, -1)
        raw = np.asarray(tensor.data).view(np.uint8)
        return block_format.decode(raw.reshape(rows, -1, block_format.size_bytes))

    def _dense(self, tensor: "gguf.ReaderTensor") -> torch.Tensor:
        """F32, F16 or BF16 values as stored; a copy."""
        type_name = tensor.tensor_type.name
        if type_name == "BF16":
            raw = np.array(tensor.data).view(np.int16)
            return torch.from_numpy(raw).view(torch.bfloat16)
        if type_name not in _DENSE_TYPES:
            known = ", ".join([*_DENSE_TYPES, "BF16", *FORMAT_BY_NAME])
            message = (
                f"{self._file.path}: tensor {tensor.name} has type {type_name}, which is not "
                f"supported here; convert it to one of: {known}"
            )
            raise ModelLoadError(message)
        return torch.from_numpy(np.array(tensor.data).view(_DENSE_TYPES[type_name]))
