"""Each rank reads its part of every weight, of every form of file, and all parts make the whole."""

from itertools import product
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.worker.model_executor.test_fp8_checkpoint import save_packed
from tests.worker.model_executor.tiny_gguf import write_gguf
from tests.worker.model_executor.tiny_models import save_tiny

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.kernels.fp8_matrix import Fp8Matrix
from mizzen_worker.layers.stored_matrix import as_tensor
from mizzen_worker.model_executor.weights.checkpoint import Checkpoint, open_checkpoint
from mizzen_worker.model_executor.weights.gguf_blocks import FORMAT_BY_NAME
from mizzen_worker.model_executor.weights.gguf_file import GgufFile
from mizzen_worker.model_executor.weights.gguf_source import GgufWeightSource
from mizzen_worker.model_executor.weights.progress import ByteProgress
from mizzen_worker.models.rank_source import RankSource
from mizzen_worker.models.shard_plan import plan_shard
from mizzen_worker.models.weight_source import Part, PartialWeightSource

FORMS = ("llama3-biases", "qwen2", "qwen3-moe", "mixtral", "gguf", "rows")
IN_BLOCKS = ("gguf-packed", "blocks")
"""Whose blocks four ranks would cut."""


def checkpoint_of(folder: Path, form: str) -> tuple[Checkpoint, Path]:
    """A tiny model, and a safetensors file with the names and shapes of its weights."""
    if form in ("blocks", "rows"):
        dense = save_packed(folder, form)
        return open_checkpoint(folder), dense / "model.safetensors"
    if not form.startswith("gguf"):
        save_tiny(folder, form)
        return open_checkpoint(folder), folder / "model.safetensors"
    save_tiny(folder, "llama3-biases", intermediate_size=128)
    target = folder / "tiny.gguf"
    write_gguf(folder, target, quantised="Q8_0" if form == "gguf-packed" else None)
    return open_checkpoint(target), folder / "model.safetensors"


def source_of(checkpoint: Checkpoint) -> PartialWeightSource:
    return checkpoint.open_weights(lambda done, total: None).source


def experts_apart(name: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, int]]]:
    """The names and shapes of the matrices in a tensor: more than one where experts are fused."""
    if len(shape) == 2:
        return [(name, (shape[0], shape[1]))]
    stem, part = name.rsplit(".", 1)
    block = stem.replace(".mlp.experts", "")
    count, rows, columns = shape
    words = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[part]
    sizes = (rows // len(words), columns)
    return [
        (f"{block}.mlp.experts.{e}.{word}.weight", sizes) for e in range(count) for word in words
    ]


@pytest.mark.parametrize(
    ("form", "size"), [*product(FORMS, (2, 4)), *((form, 2) for form in IN_BLOCKS)]
)
def test_parts_are_slices_of_the_whole(tmp_path: Path, form: str, size: int) -> None:
    checkpoint, names = checkpoint_of(tmp_path, form)
    source = source_of(checkpoint)
    plans = [plan_shard(checkpoint.facts, rank=rank, size=size) for rank in range(size)]
    ranks = [RankSource(source, plan) for plan in plans]
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(names).items()}
    num_divided = 0
    for stored, shape in shapes.items():
        if len(shape) == 1:
            whole = source.vector(stored, shape[0])
            parts = [rank.vector(stored, shape[0]) for rank in ranks]
            if stored.endswith(("o_proj.bias", "down_proj.bias")):
                assert torch.equal(torch.stack(parts).sum(0), whole)
            else:
                require_slices(parts, whole, None if ".bias" not in stored else 0)
            continue
        for name, (rows, columns) in experts_apart(stored, shape):
            whole = as_tensor(source.matrix(name, rows, columns))
            parts = [as_tensor(rank.matrix(name, rows, columns)) for rank in ranks]
            word = name.rsplit(".", 2)[-2]
            side = 1 if word in ("o_proj", "down_proj", "w2") else 0
            require_slices(parts, whole, None if word == "gate" else side)
            num_divided += word != "gate"
    assert num_divided > 10


def require_slices(parts: list[torch.Tensor], whole: torch.Tensor, side: int | None) -> None:
    """``side`` None: every rank has everything."""
    if side is None:
        assert all(torch.equal(part, whole) for part in parts)
        return
    if torch.equal(parts[0], parts[1]) and len(parts) == 4:
        # KV heads that two ranks share.
        parts = parts[::2]
    joined = torch.cat(parts, side)
    assert torch.equal(joined, whole)


def test_parts_of_fp8_matrices_stay_so(tmp_path: Path) -> None:
    save_packed(tmp_path, "blocks")
    checkpoint = open_checkpoint(tmp_path)
    plan = plan_shard(checkpoint.facts, rank=1, size=2)
    source = RankSource(source_of(checkpoint), plan)
    down = source.matrix("model.layers.0.mlp.down_proj.weight", 128, 256)
    assert isinstance(down, Fp8Matrix)
    assert down.scale.shape == (1, 128)


def test_fp8_columns_that_begin_inside_a_block_are_dense(tmp_path: Path) -> None:
    save_packed(tmp_path, "blocks")
    source = source_of(open_checkpoint(tmp_path))
    name = "model.layers.0.mlp.down_proj.weight"
    part = source.matrix(name, 128, 256, Part(rows=range(3, 77), columns=range(100, 201)))
    assert isinstance(part, torch.Tensor)
    whole = as_tensor(source.matrix(name, 128, 256))
    assert torch.equal(part, whole[3:77, 100:201])


@pytest.mark.parametrize("kind", sorted(FORMAT_BY_NAME))
def test_every_block_format_is_cut_between_its_smallest_blocks(tmp_path: Path, kind: str) -> None:
    """And nowhere else: a block of the file may be cut where a smaller one inside it is not."""
    block_format = FORMAT_BY_NAME[kind]
    rng = np.random.default_rng(7)
    raw = rng.integers(
        0, 100, (48, 512 // block_format.columns * block_format.size_bytes), np.uint8
    )
    path = tmp_path / "one.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.ffn_down.weight", raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = gguf_source(path, tmp_path)
    name = "model.layers.0.mlp.down_proj.weight"
    whole = as_tensor(source.matrix(name, 48, 512))
    for rows, columns in ((range(48), range(32, 352)), (range(5, 9), range(480, 512))):
        part = source.matrix(name, 48, 512, Part(rows=rows, columns=columns))
        expected = whole[rows.start : rows.stop, columns.start : columns.stop]
        assert torch.equal(as_tensor(part), expected)
    with pytest.raises(ModelLoadError, match=rf"\({kind}\) cannot be divided among ranks: columns"):
        source.matrix(name, 48, 512, Part(columns=range(8, 512)))


def gguf_source(path: Path, folder: Path) -> PartialWeightSource:
    """Of a file that holds one tensor."""
    save_tiny(folder, "qwen2")
    shape = open_checkpoint(folder).facts.shape
    file = GgufFile(path)
    return GgufWeightSource(file, shape, ByteProgress(1, lambda d, t: None))


def test_a_ranks_dummy_weights_are_slices_of_the_whole_models(tmp_path: Path) -> None:
    save_tiny(tmp_path, "qwen3")
    checkpoint = open_checkpoint(tmp_path, is_dummy=True)
    source = source_of(checkpoint)
    for rank in range(2):
        plan = plan_shard(checkpoint.facts, rank=rank, size=2)
        own = RankSource(source, plan).matrix("model.layers.1.self_attn.o_proj.weight", 64, 128)
        whole = source.matrix("model.layers.1.self_attn.o_proj.weight", 64, 128)
        assert torch.equal(as_tensor(own), as_tensor(whole)[:, rank * 64 : rank * 64 + 64])
