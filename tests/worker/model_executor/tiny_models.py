"""Tiny random checkpoints of every architecture, transformers' answers for them, and our runner.

Biases and norms are random too: transformers begins with zeros and ones, which hide mistakes.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from tests.worker.model_executor.runner_driver import Driven
from tests.worker.model_executor.tiny_llama import reference_logits
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from mizzen_worker.contracts.batch import Runner
from mizzen_worker.kernels.native_library import INSTRUCTION_SETS
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.factory import LoadedModel, load_runner
from mizzen_worker.model_executor.runner_options import ComputeType, RunnerOptions, WeightFormat

VOCAB_SIZE = 199

_SIZES: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "initializer_range": 0.2,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

_EXPERTS: dict[str, object] = {
    "head_dim": 32,
    "moe_intermediate_size": 48,
    "num_experts": 7,
    "num_experts_per_tok": 3,
}

VARIANTS: dict[str, tuple[type[PreTrainedConfig], dict[str, object]]] = {
    "llama": (LlamaConfig, {}),
    "llama3-biases": (
        LlamaConfig,
        {"attention_bias": True, "mlp_bias": True, "rope_parameters": _LLAMA3_ROPE},
    ),
    "mistral-window": (MistralConfig, {"sliding_window": 11, "head_dim": 16}),
    "mistral": (MistralConfig, {"sliding_window": None, "head_dim": 32}),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "qwen2-window": (
        Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": (Qwen3Config, {"head_dim": 32}),
    "qwen3-biases": (Qwen3Config, {"head_dim": 48, "attention_bias": True}),
    "qwen3-moe": (Qwen3MoeConfig, _EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [1]}),
    "qwen3-moe-window": (
        Qwen3MoeConfig,
        _EXPERTS
        | {"use_sliding_window": True, "sliding_window": 9}
        | {"decoder_sparse_step": 2, "attention_bias": True},
    ),
    "mixtral": (MixtralConfig, {"num_local_experts": 4, "head_dim": 16}),
    "mixtral-window": (MixtralConfig, {"num_local_experts": 3, "sliding_window": 11}),
}

ARCHITECTURES = ("llama", "mistral-window", "qwen2", "qwen3", "qwen3-moe", "mixtral-window")
"""One variant of each."""

IN_PLAIN_TORCH = ("qwen3-moe", "mixtral-window")
"""Those that the native kernels leave to plain torch, whatever backend is asked for."""


@dataclass(frozen=True)
class Reference:
    """Transformers' greedy continuation: ids, and the logits each was chosen from."""

    ids: list[int]
    logits: torch.Tensor

    def gap(self, index: int) -> float:
        """Distance of the two best logits at one step."""
        best = self.logits[index].topk(2).values
        return float(best[0] - best[1])


@dataclass
class Tiny:
    """One checkpoint on disk; answers of transformers are computed once."""

    folder: Path
    model: PreTrainedModel
    _known: dict[tuple[int, ...], Reference] = field(default_factory=dict)

    def reference(self, prompt: list[int], count: int) -> Reference:
        """Greedy, recomputed from scratch for every token, in float32."""
        key = (count, *prompt)
        if key not in self._known:
            ids, rows = list(prompt), []
            for _ in range(count):
                rows.append(reference_logits(self.model, ids)[-1])
                ids.append(int(rows[-1].argmax()))
            self._known[key] = Reference(ids[len(prompt) :], torch.stack(rows))
        return self._known[key]


def save_tiny(folder: Path, variant: str, **changes: object) -> PreTrainedModel:
    """Write config.json and safetensors; returns the model in float32."""
    config_class, own = VARIANTS[variant]
    torch.manual_seed(11)
    config = config_class(**{**_SIZES, **own, **changes})
    model = AutoModelForCausalLM.from_config(config).float().eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(noise * 0.3 + (0.0 if name.endswith("bias") else 1.0))
    model.save_pretrained(folder)
    return model


def load_tiny(folder: Path, backend: str, page_size: int = 16, **changes: object) -> Runner:
    """Give the runner alone of ``load_tiny_model``."""
    return load_tiny_model(folder, backend, page_size, **changes).runner


def load_tiny_model(
    folder: Path, backend: str, page_size: int = 16, **changes: object
) -> LoadedModel:
    """``backend``: torch, cuda (float32 unless told), or an instruction set of native kernels."""
    options: dict[str, object] = {"kv_tokens": 2048, "max_slots": 6, "num_threads": 1}
    if backend in TORCH_BACKENDS:
        options["weight_format"] = WeightFormat.DENSE
        if backend == "cuda":
            options |= {"device": "cuda", "compute_type": ComputeType.FLOAT32}
    else:
        options["instruction_set"] = backend
    options.update(changes)
    return load_runner(
        RunnerOptions(model=folder, page_size=page_size, **options), lambda done, total: None
    )


TORCH_BACKENDS = ("torch", "cuda")
"""Plain torch on the CPU, and on a GPU."""

ON_CUDA = pytest.param("cuda", marks=pytest.mark.gpu)

EVERY_BACKEND = pytest.mark.parametrize(
    "backend",
    [
        "torch",
        pytest.param(
            INSTRUCTION_SETS[0] if INSTRUCTION_SETS else "native",
            marks=pytest.mark.skipif(
                not INSTRUCTION_SETS, reason="missing: the native extension (make setup builds it)"
            ),
        ),
        ON_CUDA,
    ],
)
"""Plain torch, this processor's best native kernels, and a GPU."""

EVERY_DEVICE = pytest.mark.parametrize("device", ["cpu", ON_CUDA])


class LogitsRecorder:
    """Stands between a runner and its forward and keeps the logits of every step."""

    def __init__(self, runner: Runner) -> None:
        self._forward = runner._forward
        self.steps: list[torch.Tensor] = []
        runner._forward = self

    def run(self, batch: ForwardBatch) -> torch.Tensor:
        logits = self._forward.run(batch)
        self.steps.append(logits.to("cpu", copy=True))
        return logits

    def take(self) -> torch.Tensor:
        """Everything since the last call: [rows sampled, vocab]."""
        steps, self.steps = self.steps, []
        return torch.cat(steps)


def check_against(reference: Reference, request: Driven, logits: torch.Tensor) -> None:
    """Greedy ids are the same, logits within ``LOGIT_TOLERANCE``."""
    count = len(request.output)
    assert request.output == reference.ids[:count]
    torch.testing.assert_close(
        logits, reference.logits[:count], rtol=LOGIT_TOLERANCE, atol=LOGIT_TOLERANCE
    )


LOGIT_TOLERANCE = 2e-4
"""In float32, beside logits of about 10."""
