"""Runs what a start on a GPU would launch, for small models, on a device without values.

A program: prints the kernels by model as JSON. There need be no GPU.
"""

import json
import tempfile
from pathlib import Path

import torch
import triton

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.kernels.gpu.claimed_driver import ClaimedDriver
from mizzen_worker.kernels.gpu.compile_ahead import recorded_kernels
from mizzen_worker.model_executor.gpu_factory import gpu_start
from mizzen_worker.model_executor.runner_options import RunnerOptions, WeightFormat
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
_MODELS: dict[str, dict[str, object]] = {
    "LlamaForCausalLM": {},
    "Qwen3ForCausalLM": {"tie_word_embeddings": True},
    "Qwen3MoeForCausalLM": _EXPERTS,
}


def kernels_of(folder: Path, config: dict[str, object]) -> list[str]:
    (folder / "config.json").write_text(json.dumps(config))
    options = RunnerOptions(
        model=folder,
        kv_tokens=None,
        page_size=16,
        max_slots=9,
        device="cuda",
        weight_format=WeightFormat.DUMMY,
        max_chunk_tokens=512,
    )
    checkpoint = open_checkpoint(folder, is_dummy=True)
    limits = RunnerLimits(
        max_slots=9,
        num_pages=1,
        page_size=16,
        context_length=checkpoint.facts.context_length,
        vocab_size=checkpoint.facts.shape.vocab_size,
    )
    start = gpu_start(options, checkpoint, limits, torch.device("cuda", 0))
    with recorded_kernels() as requests:
        start.run_without_values()
    return sorted({request.name for request in requests})


def main() -> None:
    triton.runtime.driver.set_active(ClaimedDriver(90))
    found = {}
    for architecture, own in _MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            config = {"architectures": [architecture], **_SIZES, **own}
            found[architecture] = kernels_of(Path(folder), config)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
