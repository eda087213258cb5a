"""Runs what a start on a GPU would launch, for small models, on a device without values.

A program: prints as JSON, by model, the kernels, what captured steps launch that their rehearsals
do not, and whether this rank scores. There need be no GPU.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import triton
from tests.worker.model_executor.rehearsed_capture import RehearsedGraphs

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.kernels.gpu.claimed_driver import ClaimedDriver
from mizzen_worker.kernels.gpu.compile_ahead import recorded_kernels
from mizzen_worker.model_executor.gpu_factory import gpu_start
from mizzen_worker.model_executor.gpu_forward import GpuForward
from mizzen_worker.model_executor.gpu_model import step_capture
from mizzen_worker.model_executor.model_runner import ModelRunner
from mizzen_worker.model_executor.runner_options import RunnerOptions, WeightFormat
from mizzen_worker.model_executor.runner_parts import build_pool, pool_shape
from mizzen_worker.model_executor.shard import own_facts, shard_of
from mizzen_worker.model_executor.stored_types import Quantization
from mizzen_worker.model_executor.valueless import (
    VALUELESS,
    ValuelessCollective,
    ValuelessLink,
)
from mizzen_worker.model_executor.weights.checkpoint import open_checkpoint

_SIZES: dict[str, object] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
}
_EXPERTS: dict[str, object] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_DENSE_AND_EXPERTS = {**_EXPERTS, "num_hidden_layers": 6, "mlp_only_layers": [1, 4]}
_WINDOWS: dict[str, object] = {
    "num_hidden_layers": 6,
    "use_sliding_window": True,
    "sliding_window": 200,
    "max_window_layers": 3,
}
_MODELS: tuple[tuple[str, dict[str, object], Quantization], ...] = (
    ("LlamaForCausalLM", {}, Quantization.NONE),
    ("LlamaForCausalLM", {"num_hidden_layers": 5, "attention_bias": True}, Quantization.FP8),
    ("Qwen2ForCausalLM", _WINDOWS, Quantization.NONE),
    ("Qwen3ForCausalLM", {"tie_word_embeddings": True}, Quantization.NONE),
    ("Qwen3MoeForCausalLM", _EXPERTS, Quantization.NONE),
    ("Qwen3MoeForCausalLM", _DENSE_AND_EXPERTS, Quantization.NONE),
)


_DIVIDED: tuple[tuple[str, dict[str, object], int], ...] = (
    ("LlamaForCausalLM", {"attention_bias": True}, 0),
    ("Qwen3ForCausalLM", {"tie_word_embeddings": True, "vocab_size": 511}, 1),
    ("Qwen3MoeForCausalLM", {**_DENSE_AND_EXPERTS, "num_hidden_layers": 3}, 1),
)
"""And which of two ranks starts: the first one scores for both where a step asks for more than a
token."""


def kernels_of(
    folder: Path,
    config: dict[str, object],
    quantization: Quantization,
    rank: int | None = None,
) -> tuple[list[str], list[str]]:
    """Kernels of a start, and what rehearsals miss; ``rank`` is one of two."""
    (folder / "config.json").write_text(json.dumps(config))
    options = RunnerOptions(
        model=folder,
        kv_tokens=None,
        page_size=16,
        max_slots=9,
        device="cuda",
        weight_format=WeightFormat.DUMMY,
        max_chunk_tokens=512,
        quantization=quantization,
    )
    checkpoint = open_checkpoint(folder, is_dummy=True)
    limits = RunnerLimits(
        max_slots=9,
        num_pages=1,
        page_size=16,
        context_length=checkpoint.facts.context_length,
        vocab_size=checkpoint.facts.shape.vocab_size,
    )
    collective = None if rank is None else ValuelessCollective(rank, 2)
    shard = shard_of(checkpoint.facts, collective)
    facts = own_facts(checkpoint.facts, shard)
    start = gpu_start(options, checkpoint, limits, torch.device("cuda", 0), shard)
    with recorded_kernels() as requests:
        start.run_without_values()
    names = sorted({request.name for request in requests})
    with recorded_kernels() as requests:
        graphs = RehearsedGraphs(requests)
        limits = replace(limits, num_pages=64)
        forward = start.load(VALUELESS, lambda done, total: None)(
            build_pool(pool_shape(facts, limits), torch.bfloat16, VALUELESS)
        )
        assert isinstance(forward, GpuForward)
        capture = step_capture(forward, limits, lambda: graphs)
        runner = ModelRunner(forward, limits, VALUELESS, ValuelessLink(), capture, collective)
        runner.warm_up(lambda done, total: None)
    assert graphs.num_captured
    return names, graphs.missed


def main() -> None:
    triton.runtime.driver.set_active(ClaimedDriver(90))
    kernels, missed, scoring = [], [], []
    starts = [
        *((*model, None) for model in _MODELS),
        *((name, own, Quantization.NONE, rank) for name, own, rank in _DIVIDED),
    ]
    for architecture, own, quantization, rank in starts:
        with tempfile.TemporaryDirectory() as folder:
            config = {"architectures": [architecture], **_SIZES, **own}
            names, unrehearsed = kernels_of(Path(folder), config, quantization, rank)
            kernels.append(names)
            missed.append(unrehearsed)
            scoring.append(rank in (None, 0))
    print(json.dumps({"kernels": kernels, "missed": missed, "scoring": scoring}))


if __name__ == "__main__":
    main()
