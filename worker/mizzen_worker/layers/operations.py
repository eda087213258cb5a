"""Owns the vocabulary of fused operations in which models are written; implements none.

``V`` is whatever an implementation calls a value (a tensor, or a buffer of a recorded program),
``W`` whatever it makes of a weight. A model file sees neither regime nor kernel. Values that an
operation returns may share memory with its arguments: use the returned value only.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from mizzen_worker.kernels.fp8_matrix import Fp8Matrix
from mizzen_worker.kernels.quantised_matrix import QuantisedMatrix

V = TypeVar("V")
W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)
W_co = TypeVar("W_co", covariant=True)

StoredMatrix = torch.Tensor | QuantisedMatrix | Fp8Matrix

AttendFunction = Callable[[int, torch.Tensor, int | None], torch.Tensor]
"""Layer, queries [num_tokens, num_heads, head_dim] and window to their attention.

What implementations are made with; see ``attention/base.py``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorms(Generic[W_co]):
    """RMS norms of every query and of every key head, each [head_dim]."""

    query: W_co
    key: W_co


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a token chooses experts: those with the ``num_chosen`` largest router logits.

    Their weights are a softmax over all experts, or, if ``is_normalised``, over the chosen ones.
    """

    num_chosen: int
    is_normalised: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Generic[W_co]):
    """A mixture of gated MLPs; ``router`` [num_experts, hidden] and ``gate_up`` share a norm."""

    routing: Routing
    router: W_co
    gate_up: W_co
    down: W_co


class WeightPreparer(Protocol[W]):
    """Turns stored weights into the form that an implementation computes with.

    Biases [outputs] float32 are added by every operation that projects with the weight.
    """

    def linear(self, parts: Sequence[StoredMatrix], bias: torch.Tensor | None = None) -> W:
        """One matrix whose outputs are those of the parts, one after the other."""
        ...

    def gate_up(self, gate: StoredMatrix, up: StoredMatrix, bias: torch.Tensor | None = None) -> W:
        """The two projections of a gated MLP, for ``norm_gate_up_silu``; gate's biases first."""
        ...

    def expert_gate_up(
        self, pairs: Iterable[tuple[StoredMatrix, StoredMatrix]], num_experts: int
    ) -> W:
        """``gate_up`` of every expert in turn; asks for one pair at a time and keeps none."""
        ...

    def expert_down(self, matrices: Iterable[StoredMatrix], num_experts: int) -> W:
        """The second projection of every expert in turn, as ``expert_gate_up``."""
        ...

    def normed(self, weight: W, norm: torch.Tensor) -> W:
        """The same projection behind an RMS norm of its input, whose weight is ``norm`` float32.

        For the operations whose names begin with ``norm_``. The argument must not be used again:
        an implementation may have multiplied its columns by ``norm``.
        """
        ...

    def unnormed(self, weight: W) -> W:
        """The same projection with no norm before it, for ``linear_add``.

        What is neither ``normed`` nor this (the head, the embedding) is not a projection of a
        layer. The argument must not be used again.
        """
        ...

    def norm(self, weight: torch.Tensor) -> W:
        """Weight of an RMS norm that stands alone, [size] float32."""
        ...


class Operations(Protocol[V, W_contra]):
    """Operations of a decoder over all tokens of one step.

    What a model promises: it asks for every layer in turn, and of the last layer's attention, and
    of the hidden rows that went into it, it uses nothing but what ``select_sampled`` gives. So an
    implementation may compute queries and attention of the last layer for sampled tokens alone;
    keys and values of all tokens are stored in every layer.
    """

    def embed(self, embedding: W_contra) -> V:
        """Rows of the embedding for the step's token ids: [num_tokens, hidden]."""
        ...

    def norm_qkv_rotary_store(self, hidden: V, qkv: W_contra, layer: int) -> V:
        """RMS norm, query/key/value projection, rotary embedding; keys and values go to the pool.

        Returns the queries [num_tokens, num_heads, head_dim].
        """
        ...

    def norm_qkv_head_norm_rotary_store(
        self, hidden: V, qkv: W_contra, heads: HeadNorms[W_contra], layer: int
    ) -> V:
        """Like ``norm_qkv_rotary_store``, with each query and key head normed before rotation."""
        ...

    def attend(self, queries: V, layer: int, window: int | None) -> V:
        """Causal attention over the pool: [num_tokens, num_heads * head_dim].

        With a ``window`` a token sees itself and the ``window - 1`` positions before it.
        """
        ...

    def linear_add(self, value: V, weight: W_contra, residual: V) -> V:
        """``residual + weight @ value``, with the weight's bias."""
        ...

    def norm_gate_up_silu(self, hidden: V, gate_up: W_contra) -> V:
        """RMS norm, gate and up projection, ``silu(gate) * up``: [num_tokens, intermediate]."""
        ...

    def norm_experts_add(self, hidden: V, experts: Experts[W_contra]) -> V:
        """RMS norm, routing, and ``hidden`` plus the weighted sum of the chosen experts' MLPs."""
        ...

    def select_sampled(self, value: V) -> V:
        """Only the tokens whose logits are asked for: [num_sampled, ...].

        Asked of the last layer's attention and of its residual, before anything else reads them.
        """
        ...

    def norm_head(self, hidden: V, norm: W_contra, head: W_contra) -> V:
        """RMS norm and vocabulary projection: [num_sampled, vocab] float32."""
        ...
