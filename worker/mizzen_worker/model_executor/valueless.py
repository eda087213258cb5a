"""Owns a device that holds no values: what a runner needs to run on torch's ``meta`` tensors.

Steps run there to find out which kernels they launch, without memory and without a GPU.
"""

from collections.abc import Sequence

import torch

from mizzen_worker.contracts.batch import Int32Array
from mizzen_worker.kernels.fp8_matrix import FP8, GROUP, Fp8Matrix
from mizzen_worker.model_executor.device_link import HostLink, PendingDownload
from mizzen_worker.model_executor.graphs import Graph, Work
from mizzen_worker.models.weight_source import WHOLE, Part

VALUELESS = torch.device("meta")


class ValuelessLink:
    """Implements ``DeviceLink``; what it brings back is empty."""

    def upload(self, words: Int32Array) -> torch.Tensor:
        """See ``DeviceLink``."""
        return torch.empty(len(words), dtype=torch.int32, device=VALUELESS)

    def download(self, tensors: Sequence[torch.Tensor]) -> PendingDownload:
        """See ``DeviceLink``."""
        del tensors
        return HostLink().download(())


class ValuelessSource:
    """Implements ``PartialWeightSource`` for a model of which only the sizes matter."""

    def __init__(self, fp8_scales: str | None = None) -> None:
        """``fp8_scales`` as of ``ModelFacts``."""
        self._fp8_scales = fp8_scales

    def vector(self, name: str, length: int, part: range | None = None) -> torch.Tensor:
        """See ``PartialWeightSource``."""
        del name
        return torch.empty(length if part is None else len(part), device=VALUELESS)

    def matrix(
        self, name: str, rows: int, columns: int, part: Part = WHOLE
    ) -> torch.Tensor | Fp8Matrix:
        """See ``PartialWeightSource``."""
        rows = rows if part.rows is None else len(part.rows)
        columns = columns if part.columns is None else len(part.columns)
        if self._fp8_scales is not None and name.endswith("_proj.weight"):
            groups = columns // GROUP if self._fp8_scales == "blocks" else 1
            return Fp8Matrix(
                values=torch.empty(rows, columns, dtype=FP8, device=VALUELESS),
                scale=torch.empty(groups, rows, device=VALUELESS),
            )
        return torch.empty(rows, columns, dtype=torch.bfloat16, device=VALUELESS)


class ValuelessCollective:
    """Implements ``Collective`` for a rank that meets no others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def sum_over_ranks(self, values: torch.Tensor) -> None:
        """See ``Collective``; a sum has the form of what is summed."""

    def gather_columns(self, values: torch.Tensor) -> torch.Tensor:
        """See ``Collective``."""
        return torch.cat([values] * self.size, dim=1)

    def copy_from_leader(self, values: torch.Tensor) -> None:
        """See ``Collective``."""


class _RanOnce:
    def replay(self) -> None:
        """See ``Graph``; there is nothing to run again."""


class ValuelessGraphs:
    """Implements ``GraphMaker`` by running the work once."""

    def capture(self, work: Work, rehearse: Work) -> tuple[Graph, torch.Tensor | None]:
        """See ``GraphMaker``; the rehearsal has no kernels but those of the work."""
        del rehearse
        return _RanOnce(), work()
