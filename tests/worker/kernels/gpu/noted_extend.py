"""A launch of the extend attention with tensors that hold nothing, to be compiled ahead."""

import torch
from tests.worker.kernels.gpu.ahead_of_time import empty

from mizzen_worker.kernels.gpu.attention_tile import ScoreRule
from mizzen_worker.kernels.gpu.extend_attention import extend_attention
from mizzen_worker.kernels.gpu.extend_plan import ExtendPlan, ExtendRows, HeadShape, choose_tile
from mizzen_worker.kernels.gpu.launching import shared_memory


def launch_extend(
    heads: HeadShape,
    rule: ScoreRule,
    *,
    page_size: int,
    pool_dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Queries stand beside keys and values in one projection."""
    cache = empty(1024, heads.num_kv_heads, heads.head_dim, dtype=pool_dtype)
    queries = empty(64, heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim)
    rows = ExtendRows(
        page_table=empty(16, 1024, dtype=torch.int32),
        row_slots=empty(16, dtype=torch.int64),
        row_starts=empty(17, dtype=torch.int32),
        row_lengths=empty(16, dtype=torch.int32),
        page_size=page_size,
    )
    plan = ExtendPlan(
        rows=rows,
        heads=heads,
        tile=choose_tile(heads, torch.bfloat16, shared_memory()),
        tiles=empty(32, 2, dtype=torch.int32),
    )
    extend_attention(queries[:, : heads.num_heads], cache, cache, plan, rule)
