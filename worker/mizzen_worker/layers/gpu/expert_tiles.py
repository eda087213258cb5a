"""Owns which configurations experts' products run with; data and a lookup, launches nothing.

Keyed by the experts' sizes and by how many tokens an expert has on average. Winners were measured
on an H200; other sizes take the default, other devices less shared memory (``fitted``).
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mizzen_worker.kernels.gpu.expert_gemv import DownTile
from mizzen_worker.kernels.gpu.gemv import GemvTile
from mizzen_worker.kernels.gpu.skinny_gemm import Tile


class Form(enum.Enum):
    """Which operand an expert's rows are: of few the right one, of many the left one."""

    FEW = "few"
    MANY = "many"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Configurations of both products of a step."""

    form: Form
    gated: Tile
    down: Tile

    def fitted(self, limit: int, element_size: int = 2) -> "Choice":
        """With less in flight where ``limit`` bytes of shared memory are less than wanted."""
        return replace(
            self,
            gated=self.gated.fitted(limit, element_size),
            down=self.down.fitted(limit, element_size),
        )


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


def _few(rows: int, gated: tuple[int, int, int], down: tuple[int, int, int]) -> Choice:
    """Each: columns (of gate and up together), depth, stages."""
    return Choice(
        form=Form.FEW,
        gated=Tile(rows=rows, columns=gated[0], depth=gated[1], stages=gated[2], accumulators=2),
        down=Tile(rows=rows, columns=down[0], depth=down[1], stages=down[2]),
    )


def _many(gated: Tile, down: Tile) -> Choice:
    return Choice(form=Form.MANY, gated=gated, down=down)


def _wide(rows: int, columns: int, depth: int, stages: int, warps: int) -> Tile:
    return Tile(rows=rows, columns=columns, depth=depth, stages=stages, warps=warps)


_CHOICES = {
    8.0: _few(16, (128, 256, 3), (128, 128, 3)),
    24.0: _few(32, (128, 128, 5), (128, 128, 4)),
    200.0: _many(_wide(128, 128, 64, 3, 8), _wide(64, 128, 64, 4, 4)),
}
_SMALL = [_wide(rows, 64, 64, 3, 4) for rows in (16, 32)]
_WITHOUT_TENSOR_COPIES = {
    8.0: _many(_SMALL[0], _SMALL[0]),
    32.0: _many(_SMALL[1], _SMALL[1]),
}
"""There descriptors become plain loads, which only small tiles hold in registers."""

_MANY_ROWS = _many(_wide(128, 256, 64, 3, 8), _wide(128, 128, 64, 3, 4))

QWEN_30B_A3B = ExpertTiles(
    router_one=GemvTile(warps=4, rows=1, ahead=8),
    gated_one=GemvTile(warps=4, rows=4, ahead=4),
    down_one=DownTile(warps=8, ahead=12),
    choices=_CHOICES,
    last=_MANY_ROWS,
)
"""128 experts of 768, hidden 2048, 8 chosen."""

_DEFAULT = ExpertTiles(
    router_one=GemvTile(warps=4, rows=1, ahead=8),
    gated_one=GemvTile(warps=4, rows=4, ahead=4),
    down_one=DownTile(warps=8, ahead=12),
    choices=_CHOICES,
    last=_MANY_ROWS,
)

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
