"""Owns putting a model on a GPU's kernels: whether they fit it, its forward, its captured steps."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from mizzen_worker.attention.triton_attention import TritonAttention
from mizzen_worker.attention.triton_extend import TritonExtend
from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.kernels.gpu.launching import PLAIN, dependent
from mizzen_worker.kernels.gpu.sampling import DrawParameters, draw
from mizzen_worker.kernels.gpu.stage_step import DrawColumns
from mizzen_worker.layers.gpu.expert_tally import ExpertTally
from mizzen_worker.layers.gpu.experts import reason_against
from mizzen_worker.layers.gpu.gemv_operations import GemvOperations
from mizzen_worker.layers.gpu.large_operations import LargeOperations
from mizzen_worker.layers.gpu.rank_operations import (
    RankGemvOperations,
    RankLargeOperations,
    RankSkinnyOperations,
)
from mizzen_worker.layers.gpu.skinny_operations import SkinnyOperations
from mizzen_worker.layers.gpu.step import GpuSettings
from mizzen_worker.layers.gpu.weights import GpuWeight, GpuWeightPreparer
from mizzen_worker.layers.ranks import JoinedRanks
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.model_executor.captured_steps import MakeCapturedSteps
from mizzen_worker.model_executor.decode_graphs import Capture, DecodeGraphs
from mizzen_worker.model_executor.gpu_forward import GpuForward, Regimes
from mizzen_worker.model_executor.graphs import GraphMaker
from mizzen_worker.model_executor.prefill_graphs import PrefillGraphs
from mizzen_worker.model_executor.shard import Shard, own_facts, read_model
from mizzen_worker.model_executor.slot_state import SlotState
from mizzen_worker.model_executor.slot_table import SlotTable
from mizzen_worker.model_executor.step_graphs import StepGraphs
from mizzen_worker.model_executor.weights.checkpoint import Checkpoint
from mizzen_worker.model_executor.weights.progress import ProgressCallback
from mizzen_worker.models.model_facts import ModelFacts
from mizzen_worker.models.registry import Model

_HEAD_DIMS = (16, 32, 64, 128)
_SIZE_STEP = 16
_MAX_SKINNY_TOKENS = 256
"""Beyond it products are bound by arithmetic, no longer by reading weights."""
_REGIMES = Regimes(
    one=GemvOperations,
    skinny=SkinnyOperations,
    large=LargeOperations,
    max_skinny_tokens=_MAX_SKINNY_TOKENS,
)


def _regimes_of(ranks: JoinedRanks) -> Regimes:
    return Regimes(
        one=partial(RankGemvOperations, ranks),
        skinny=partial(RankSkinnyOperations, ranks),
        large=partial(RankLargeOperations, ranks),
        max_skinny_tokens=_MAX_SKINNY_TOKENS,
        is_chained=False,
    )


def reason_against_kernels(facts: ModelFacts) -> str | None:
    """Why the GPU kernels do not serve a model, None where they do."""
    shape = facts.shape
    if shape.head_dim not in _HEAD_DIMS:
        return f"head size {shape.head_dim} is none of {', '.join(map(str, _HEAD_DIMS))}"
    sizes = {
        "hidden size": shape.hidden_size,
        "intermediate size": shape.intermediate_size,
    }
    for name, size in sizes.items():
        if size % _SIZE_STEP:
            return f"{name} {size} is not a multiple of {_SIZE_STEP}"
    experts = shape.experts
    if experts is None:
        return None
    return reason_against(experts.num_experts, shape.hidden_size, experts.intermediate_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """Weights on a device, and what its kernels need to know of the model.

    ``ranks`` None: the device has everything.
    """

    model: Model[GpuWeight]
    settings: GpuSettings
    ranks: JoinedRanks | None = None

    def forward(self, pool: DevicePool) -> GpuForward:
        """Put it to work on a pool."""
        attention = TritonAttention(pool, TritonExtend(pool))
        regimes = _REGIMES if self.ranks is None else _regimes_of(self.ranks)
        return GpuForward(self.model, pool, attention, self.settings, regimes)


def load_gpu_model(
    checkpoint: Checkpoint,
    prepare: GpuWeightPreparer,
    context_length: int,
    progress: ProgressCallback,
    tally: ExpertTally | None = None,
    shard: Shard | None = None,
) -> GpuModel:
    """Read the weights of a model that the kernels serve, or a rank's part of them.

    ``tally`` counts any experts.
    """
    facts = own_facts(checkpoint.facts, shard)
    model = read_model(checkpoint, prepare, progress, shard)
    settings = GpuSettings(
        num_heads=facts.shape.num_heads,
        num_kv_heads=facts.shape.num_kv_heads,
        head_dim=facts.shape.head_dim,
        eps=facts.rms_norm_eps,
        table=rotary_table(facts.rotary, context_length).to(prepare.device),
        expert_counts=tally.begin(prepare.device) if tally and facts.shape.experts else None,
    )
    return GpuModel(model=model, settings=settings, ranks=None if shard is None else shard.ranks)


def step_capture(
    forward: GpuForward,
    limits: RunnerLimits,
    make_graphs: Callable[[], GraphMaker],
    longest_padded: int | None = None,
    max_rows: int | None = None,
) -> MakeCapturedSteps:
    """For ``ModelRunner``: all that is captured of a forward's steps.

    ``longest_padded`` as of ``PrefillGraphs``, ``max_rows`` as of ``Capture``.
    """

    def make(slots: SlotState, table: SlotTable) -> StepGraphs:
        graphs = make_graphs()
        capture = Capture(forward=forward, graphs=graphs, choose=_choose, max_rows=max_rows)
        return StepGraphs(
            DecodeGraphs(slots, table, limits, capture),
            PrefillGraphs(forward, slots, limits, graphs, longest_padded),
        )

    return make


def _choose(
    logits: torch.Tensor, columns: DrawColumns, positions: torch.Tensor, *, is_dependent: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Implements ``ChooseTokens``."""
    parameters = DrawParameters(
        temperatures=columns.temperatures,
        top_k=columns.top_k,
        top_p=columns.top_p,
        min_p=columns.min_p,
        seeds=columns.seeds,
        positions=positions,
    )
    return draw(logits, parameters, dependent() if is_dependent else PLAIN)
