"""Random rows over a paged pool, and what attention must give for them."""

from dataclasses import dataclass

import torch

from mizzen_worker.kernels.gpu.attention_tile import PagedRows, ScoreRule
from mizzen_worker.kernels.reference.paged_attention import attend_one, visible_locations

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Sums in another order; bfloat16: weights are rounded before they meet the values."""
LEFT_OVER = float("nan")
"""What lies where no row has written: a kernel that lets it through shows it."""


@dataclass(frozen=True)
class Group:
    """Neighbouring rows whose first pages are the same: how many rows, how many positions."""

    first: int
    count: int
    tokens: int


@dataclass(frozen=True)
class Rows:
    """Queries and pool of some rows."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    paged: PagedRows
    lengths: list[int]

    def expected(self, rule: ScoreRule) -> torch.Tensor:
        """The result by the reference, row by row."""
        results = []
        for row, length in enumerate(self.lengths):
            pages = self.paged.page_table[self.paged.row_slots[row]]
            places = visible_locations(
                pages, length, page_size=self.paged.page_size, window=rule.window
            )
            result = attend_one(
                self.queries[row].float(),
                self.keys[places].to(self.queries.dtype).float() * rule.key_scale,
                self.values[places].to(self.queries.dtype).float() * rule.value_scale,
                scale=rule.scale,
                soft_cap=rule.soft_cap,
                sinks=rule.sinks,
            )
            results.append(result.flatten())
        return torch.stack(results)


def make_rows(
    lengths: list[int],
    heads: tuple[int, int, int],
    *,
    page_size: int,
    dtype: torch.dtype = torch.float32,
    pool_dtype: torch.dtype | None = None,
    groups: tuple[Group, ...] = (),
) -> Rows:
    """``heads``: query heads, KV heads, head size. Pages are scrambled; the rest is poison.

    A row of length 0 or 1 with slot 0 pads the batch: here each such row of length 0 does.
    """
    num_heads, num_kv_heads, head_dim = heads
    generator = torch.Generator().manual_seed(sum(lengths) + head_dim)
    needed = [-(-length // page_size) for length in lengths]
    num_pages = sum(needed) + 2
    order = (torch.randperm(num_pages - 1, generator=generator) + 1).int()
    table = torch.zeros(len(lengths) + 1, max(needed) + 1, dtype=torch.int32)
    used = 0
    for row, count in enumerate(needed):
        table[row + 1, :count] = order[used : used + count]
        used += count
    for group in groups:
        shared = group.tokens // page_size
        assert shared * page_size == group.tokens
        members = slice(group.first + 1, group.first + group.count + 1)
        table[members, :shared] = table[group.first + 1, :shared]
    keys, values = torch.full((2, num_pages * page_size, num_kv_heads, head_dim), LEFT_OVER)
    for row, length in enumerate(lengths):
        places = visible_locations(table[row + 1], length, page_size=page_size)
        for pool in (keys, values):
            is_new = pool[places, 0, 0].isnan()
            shape = (int(is_new.sum()), num_kv_heads, head_dim)
            pool[places[is_new]] = torch.randn(shape, generator=generator)
    slots = torch.tensor([row + 1 if length else 0 for row, length in enumerate(lengths)])
    queries = torch.randn(len(lengths), num_heads, head_dim, generator=generator)
    return Rows(
        queries=(queries * 1.5).to(DEVICE, dtype),
        keys=keys.to(DEVICE, pool_dtype or dtype),
        values=values.to(DEVICE, pool_dtype or dtype),
        paged=PagedRows(
            page_table=table.to(DEVICE),
            row_slots=slots.to(DEVICE),
            row_lengths=torch.tensor(lengths, dtype=torch.int32).to(DEVICE),
            page_size=page_size,
        ),
        lengths=lengths,
    )


def rule_of(
    rows: Rows,
    *,
    window: int | None = None,
    soft_cap: float = 0.0,
    has_sinks: bool = False,
    scales: tuple[float, float] = (1.0, 1.0),
) -> ScoreRule:
    num_heads, head_dim = rows.queries.shape[1:]
    sinks = torch.linspace(-2, 3, num_heads).to(DEVICE) if has_sinks else None
    return ScoreRule(
        scale=head_dim**-0.5 * 1.3,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        key_scale=scales[0],
        value_scale=scales[1],
    )
