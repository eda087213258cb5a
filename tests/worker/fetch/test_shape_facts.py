"""Sizes of fetched models are those that the engine reads of them, and are read without torch."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.benchmark_models import facts_of, write_config
from tests.worker.model_executor.tiny_gguf import write_gguf
from tests.worker.model_executor.tiny_models import save_tiny

from mizzen_worker.fetch.shape_facts import read_shape_facts
from mizzen_worker.model_executor.weights.gguf_facts import read_gguf_facts
from mizzen_worker.model_executor.weights.gguf_file import GgufFile
from mizzen_worker.models.model_facts import ModelFacts

SIZES = (
    *("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads"),
    *("head_dim", "vocab_size"),
)


def _check(folder: Path, facts: ModelFacts, file_format: str) -> None:
    found = read_shape_facts(folder)
    assert found.file_format == file_format
    assert [getattr(found, name) for name in SIZES] == [
        getattr(facts.shape, name) for name in SIZES
    ]
    for name in ("architecture", "context_length", "tie_embeddings", "fp8_scales", "has_fp8_kv"):
        assert getattr(found, name) == getattr(facts, name)
    experts = facts.shape.experts
    assert (found.experts is None) == (experts is None)
    if found.experts is not None and experts is not None:
        assert found.experts.num_layers == len(experts.layers)
        assert found.experts.num_experts == experts.num_experts
        assert found.experts.num_chosen == experts.num_chosen
        assert found.experts.intermediate_size == experts.intermediate_size


@pytest.mark.parametrize("name", ["qwen06b", "llama8b", "qwen30b-a3b"])
def test_of_a_folder(tmp_path: Path, name: str) -> None:
    write_config(tmp_path, name)
    _check(tmp_path, facts_of(name), "safetensors")


@pytest.mark.parametrize("variant", ["llama", "qwen3"])
def test_of_a_gguf_file(tmp_path: Path, variant: str) -> None:
    made, folder = tmp_path / "made", tmp_path / "model"
    save_tiny(made, variant)
    folder.mkdir()
    write_gguf(made, folder / "m.gguf")
    _check(folder, read_gguf_facts(GgufFile(folder / "m.gguf")), "gguf")


def test_the_command_needs_neither_torch_nor_transformers() -> None:
    program = (
        "import sys\n"
        "import mizzen_worker.fetch.command\n"
        "print(sorted({'torch', 'transformers', 'triton', 'zmq', 'fastapi'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
