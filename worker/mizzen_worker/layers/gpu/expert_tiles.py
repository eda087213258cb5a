"""Owns which configurations experts' products run with; data and a lookup, launches nothing.

Keyed by the experts' sizes and by how many tokens an expert has on average. Winners were measured
on an H200; other sizes take the default, other devices less shared memory (``fitted``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mizzen_worker.kernels.gpu.expert_gemv import DownTile
from mizzen_worker.kernels.gpu.gemv import GemvTile
from mizzen_worker.kernels.gpu.grouped_gemm import ManyTile
from mizzen_worker.kernels.gpu.row_tiles import RowTiles
from mizzen_worker.kernels.gpu.skinny_tile import Tile


@dataclass(frozen=True, slots=True, kw_only=True)
class FewRows:
    """Both products of a step where an expert has few rows: they are the right operand."""

    gated: RowTiles
    down: RowTiles

    def fitted(self, limit: int, element_size: int = 2) -> "FewRows":
        """With less in flight where ``limit`` bytes of shared memory are less than wanted."""
        return FewRows(
            gated=self.gated.fitted(limit, element_size), down=self.down.fitted(limit, element_size)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyRows:
    """Both products of a step where an expert has many rows: they are the left operand."""

    gated: ManyTile
    down: ManyTile

    def fitted(self, limit: int, element_size: int = 2) -> "ManyRows":
        """See ``FewRows``."""
        return ManyRows(
            gated=self.gated.fitted(limit, element_size), down=self.down.fitted(limit, element_size)
        )


Choice = FewRows | ManyRows


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTiles:
    """Of one model. ``choices`` by the most tokens of an expert on average, ``last`` above."""

    router_one: GemvTile
    gated_one: GemvTile
    down_one: DownTile
    choices: Mapping[float, Choice]
    last: Choice

    def of(self, tokens_per_expert: float, *, has_tensor_copies: bool = True) -> Choice:
        """The configuration for a step of more than one token; before SM 90 one for all models."""
        choices = self.choices if has_tensor_copies else _WITHOUT_TENSOR_COPIES
        for most, choice in choices.items():
            if tokens_per_expert <= most:
                return choice
        return self.last


def _pair(rows: int, columns: int, depth: int, stages: int) -> Tile:
    """Gate and up in accumulators of their own, ``columns`` rows of each."""
    return Tile(rows=rows, columns=2 * columns, depth=depth, stages=stages, accumulators=2)


def _many(
    rows: int, columns: int, depth: int, stages: int, warps: int = 4, programs: int = 0
) -> ManyTile:
    return ManyTile(
        rows=rows, columns=columns, depth=depth, stages=stages, warps=warps, programs=programs
    )


def _tile(rows: int, columns: int, depth: int, stages: int, warps: int = 4) -> Tile:
    return Tile(rows=rows, columns=columns, depth=depth, stages=stages, warps=warps)


_CHOICES: Mapping[float, Choice] = {
    8.0: FewRows(
        gated=RowTiles(narrow=_pair(16, 64, 128, 3), wide=_pair(64, 64, 64, 4)),
        down=RowTiles(narrow=_tile(16, 128, 128, 3), wide=_tile(64, 128, 64, 4)),
    ),
    16.0: FewRows(
        gated=RowTiles(narrow=_pair(16, 64, 256, 3), wide=_pair(64, 64, 128, 4)),
        down=RowTiles(narrow=_tile(16, 128, 128, 3), wide=_tile(64, 128, 64, 4)),
    ),
    24.0: FewRows(
        gated=RowTiles(narrow=_pair(32, 64, 128, 5), wide=_pair(64, 64, 128, 4)),
        down=RowTiles(narrow=_tile(32, 128, 128, 4), wide=_tile(64, 128, 128, 3)),
    ),
    200.0: ManyRows(gated=_many(64, 256, 64, 4, 8, 1), down=_many(64, 256, 64, 4, 8, 1)),
}
_SMALL = [_many(rows, 64, 64, 3, 4) for rows in (16, 32)]
_WITHOUT_TENSOR_COPIES: Mapping[float, Choice] = {
    8.0: ManyRows(gated=_SMALL[0], down=_SMALL[0]),
    32.0: ManyRows(gated=_SMALL[1], down=_SMALL[1]),
    math.inf: ManyRows(gated=_many(128, 128, 64, 3, 8), down=_many(128, 128, 32, 3, 8)),
}
"""There descriptors become plain loads, which only small tiles hold in registers."""

_MANY_ROWS = ManyRows(gated=_many(128, 256, 64, 4, 8, 1), down=_many(128, 128, 64, 3, 4, 2))

QWEN_30B_A3B = ExpertTiles(
    router_one=GemvTile(warps=4, rows=1, ahead=8),
    gated_one=GemvTile(warps=4, rows=4, ahead=4),
    down_one=DownTile(warps=8, ahead=12),
    choices=_CHOICES,
    last=_MANY_ROWS,
)
"""128 experts of 768, hidden 2048, 8 chosen."""

_DEFAULT = QWEN_30B_A3B
"""No other experts were measured yet."""

_BY_SIZES = {(128, 2048, 768): QWEN_30B_A3B}


def tiles_of(num_experts: int, hidden_size: int, intermediate_size: int) -> ExpertTiles:
    """Configurations of experts of these sizes."""
    return _BY_SIZES.get((num_experts, hidden_size, intermediate_size), _DEFAULT)


_ROUTER_FEW = Tile(rows=16, columns=64, depth=128, stages=2, splits=8)
_ROUTER_SOME = Tile(rows=32, columns=64, depth=128, stages=2, splits=8)
_ROUTER_MANY = Tile(rows=64, columns=128, depth=64, stages=4, splits=4)


def router_tile(num_tokens: int) -> Tile:
    """A router has few rows: its columns of K are split so that enough programs work on it."""
    if num_tokens <= 16:
        return _ROUTER_FEW
    return _ROUTER_SOME if num_tokens <= 1024 else _ROUTER_MANY
