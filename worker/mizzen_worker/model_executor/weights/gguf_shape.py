"""Owns the way from a GGUF file's header to a model's sizes; reads no tensor, needs no torch."""

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.model_executor.weights.gguf_table import GgufTable
from mizzen_worker.model_executor.weights.shape_check import require_sound_shape
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.known_architectures import gguf_architecture_of
from mizzen_worker.models.model_facts import MAX_LAYERS, ModelShape


def architecture_in(table: GgufTable) -> Architecture:
    """The architecture that the file names; raises ``ModelLoadError`` for an unknown one."""
    return gguf_architecture_of(str(table.metadata.value("general.architecture")), table.path)


def read_gguf_shape(table: GgufTable, architecture: Architecture) -> ModelShape:
    """The sizes of a dense model; raises ``ModelLoadError`` for others."""
    metadata, prefix = table.metadata, str(architecture.gguf_name)
    if metadata.integer(f"{prefix}.expert_count", 0, least=0) > 0:
        message = f"{table.path}: mixture-of-experts files are not supported; use a dense model"
        raise ModelLoadError(message)
    num_heads = metadata.integer(f"{prefix}.attention.head_count")
    hidden_size = metadata.integer(f"{prefix}.embedding_length")
    shape = ModelShape(
        num_layers=metadata.integer(f"{prefix}.block_count", most=MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=metadata.integer(f"{prefix}.feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=metadata.integer(f"{prefix}.attention.head_count_kv", num_heads),
        head_dim=metadata.integer(f"{prefix}.attention.key_length", hidden_size // num_heads),
        vocab_size=table.shape("token_embd.weight")[0],
    )
    require_sound_shape(shape, f"{table.path}: ")
    return shape


def context_length(table: GgufTable, architecture: Architecture) -> int:
    """Longest prompt and output together, in tokens; raises ``ModelLoadError``."""
    return table.metadata.integer(f"{architecture.gguf_name}.context_length")


def ties_embeddings(table: GgufTable) -> bool:
    """Tell whether the head is the embedding again."""
    return not table.has_tensor("output.weight")
