"""Owns running each distinct operation of a step once, so that all its kernels are on the device.

Layers mostly repeat each other: of 28 alike, three launch every kernel. What an operation launches
follows from the forms of its weights, from which operations made its values, from the window, and
from whether only sampled tokens are left; the last layer may differ from the others. An operation
that differs in none of these is skipped, and the value of the one that ran stands for its own. So
numbers mean nothing here. Owns no kernel and no operation.
"""

from collections.abc import Callable, Hashable
from typing import Generic

from mizzen_worker.layers.gpu.weights import GpuWeight
from mizzen_worker.layers.operations import Experts, HeadNorms, Operations, V

Form = tuple[Hashable, ...]


class OnceOperations(Generic[V]):
    """``Operations`` over others, for one step."""

    def __init__(self, operations: Operations[V, GpuWeight], num_layers: int) -> None:
        self._operations = operations
        self._last = num_layers - 1
        self._is_sampled = False
        self._values: dict[Hashable, V] = {}
        self._makers: dict[int, Form] = {}
        """By the address of a value, all of which ``_values`` keeps."""

    def embed(self, embedding: GpuWeight) -> V:
        """See ``Operations``."""
        return self._once(
            ("embed", _form(embedding)), (), lambda: self._operations.embed(embedding)
        )

    def norm_qkv_rotary_store(self, hidden: V, qkv: GpuWeight, layer: int) -> V:
        """See ``Operations``."""
        return self._once(
            ("qkv", _form(qkv), layer == self._last),
            (hidden,),
            lambda: self._operations.norm_qkv_rotary_store(hidden, qkv, layer),
        )

    def norm_qkv_head_norm_rotary_store(
        self, hidden: V, qkv: GpuWeight, heads: HeadNorms[GpuWeight], layer: int
    ) -> V:
        """See ``Operations``."""
        return self._once(
            ("qkv of normed heads", _form(qkv), layer == self._last),
            (hidden,),
            lambda: self._operations.norm_qkv_head_norm_rotary_store(hidden, qkv, heads, layer),
        )

    def attend(self, queries: V, layer: int, window: int | None) -> V:
        """See ``Operations``."""
        return self._once(
            ("attend", window, layer == self._last),
            (queries,),
            lambda: self._operations.attend(queries, layer, window),
        )

    def linear_add(self, value: V, weight: GpuWeight, residual: V) -> V:
        """See ``Operations``."""
        return self._once(
            ("add", _form(weight)),
            (value, residual),
            lambda: self._operations.linear_add(value, weight, residual),
        )

    def norm_gate_up_silu(self, hidden: V, gate_up: GpuWeight) -> V:
        """See ``Operations``."""
        return self._once(
            ("gate and up", _form(gate_up)),
            (hidden,),
            lambda: self._operations.norm_gate_up_silu(hidden, gate_up),
        )

    def norm_experts_add(self, hidden: V, experts: Experts[GpuWeight]) -> V:
        """See ``Operations``."""
        forms = (_form(experts.router), _form(experts.gate_up), _form(experts.down))
        return self._once(
            ("experts", experts.routing, forms),
            (hidden,),
            lambda: self._operations.norm_experts_add(hidden, experts),
        )

    def select_sampled(self, value: V) -> V:
        """See ``Operations``."""
        selected = self._once(("select",), (value,), lambda: self._operations.select_sampled(value))
        self._is_sampled = True
        return selected

    def norm_head(self, hidden: V, norm: GpuWeight, head: GpuWeight) -> V:
        """See ``Operations``."""
        return self._operations.norm_head(hidden, norm, head)

    def _once(self, operation: Form, values: tuple[V, ...], run: Callable[[], V]) -> V:
        made_by = tuple(self._makers[id(value)] for value in values)
        maker = (*operation, self._is_sampled)
        key = (maker, made_by)
        if key not in self._values:
            made = self._values[key] = run()
            self._makers[id(made)] = maker
        return self._values[key]


def _form(weight: GpuWeight) -> Form:
    """What kernels are chosen by, whatever the numbers."""
    scale = None if weight.scale is None else weight.scale.shape
    has_parts = (weight.bias is not None, weight.input_norm is not None)
    return (weight.values.shape, weight.values.dtype, scale, *has_parts)
