"""Owns a device that holds no values: what a runner needs to run on torch's ``meta`` tensors.

Steps run there to find out which kernels they launch, without memory and without a GPU.
"""

from collections.abc import Sequence

import torch

from mizzen_worker.contracts.batch import Int32Array
from mizzen_worker.kernels.fp8_matrix import FP8, GROUP, Fp8Matrix
from mizzen_worker.model_executor.device_link import HostLink, PendingDownload
from mizzen_worker.model_executor.graphs import Graph, Work

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
    """Implements ``WeightSource`` for a model of which only the sizes matter."""

    def __init__(self, fp8_scales: str | None = None) -> None:
        """``fp8_scales`` as of ``ModelFacts``."""
        self._fp8_scales = fp8_scales

    def vector(self, name: str, length: int) -> torch.Tensor:
        """See ``WeightSource``."""
        del name
        return torch.empty(length, device=VALUELESS)

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor | Fp8Matrix:
        """See ``WeightSource``."""
        if self._fp8_scales is not None and name.endswith("_proj.weight"):
            groups = columns // GROUP if self._fp8_scales == "blocks" else 1
            return Fp8Matrix(
                values=torch.empty(rows, columns, dtype=FP8, device=VALUELESS),
                scale=torch.empty(groups, rows, device=VALUELESS),
            )
        return torch.empty(rows, columns, dtype=torch.bfloat16, device=VALUELESS)


class _RanOnce:
    def replay(self) -> None:
        """See ``Graph``; there is nothing to run again."""


class ValuelessGraphs:
    """Implements ``GraphMaker`` by running the work once."""

    def capture(self, work: Work, rehearse: Work) -> tuple[Graph, torch.Tensor | None]:
        """See ``GraphMaker``; the rehearsal has no kernels but those of the work."""
        del rehearse
        return _RanOnce(), work()
