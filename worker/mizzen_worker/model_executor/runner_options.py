"""Owns what decides how a runner is built; builds nothing."""

import enum
from dataclasses import dataclass
from pathlib import Path

from mizzen_worker.layers.gpu.expert_tally import ExpertTally
from mizzen_worker.model_executor.stored_types import KvType, Quantization


class ComputeType(enum.Enum):
    """Type of dense weights, activations and KV; AUTO is float32 on a CPU, bfloat16 on CUDA."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class WeightFormat(enum.Enum):
    """How weights are held.

    AUTO keeps them as stored (quantised ones packed) and runs the native kernels, where these are
    installed and fit the model; else as DENSE: in the compute type, through plain torch. DUMMY
    makes them up and then goes on as AUTO.
    """

    AUTO = "auto"
    DENSE = "dense"
    DUMMY = "dummy"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """What ``load_runner`` needs.

    ``kv_tokens`` is rounded down to whole pages; None takes what ``memory_fraction`` of a GPU
    leaves beside weights and a step of ``max_chunk_tokens``. ``context_length`` None means the
    model's; ``compile_cache`` keeps compiled GPU kernels; ``num_threads`` 0 leaves torch's own
    choice; ``device`` is ``cpu`` or ``cuda[:index]``.
    ``instruction_set`` names one of the native library's, None the best that there is.
    ``is_deterministic``: logits depend on a request's own tokens only, to the last bit. The native
    kernels always hold to that; plain torch then computes one token at a time. ``expert_tally``
    counts experts on a GPU, for benchmarks. ``max_rows``: the most that decode in one step, None
    as many as there are slots; steps of more are slower on a GPU.
    """

    model: Path
    kv_tokens: int | None
    page_size: int
    max_slots: int
    context_length: int | None = None
    compute_type: ComputeType = ComputeType.AUTO
    kv_type: KvType = KvType.AUTO
    quantization: Quantization = Quantization.NONE
    weight_format: WeightFormat = WeightFormat.AUTO
    num_threads: int = 0
    device: str = "cpu"
    instruction_set: str | None = None
    is_deterministic: bool = False
    max_chunk_tokens: int = 8192
    memory_fraction: float = 0.9
    uses_graphs: bool = True
    compile_cache: Path = Path.home() / ".cache" / "mizzen" / "kernels"
    expert_tally: ExpertTally | None = None
    max_rows: int | None = None
