"""Owns whether a model fits the memory of what serves it, and the arithmetic in words.

Does not own the formula (``memory_formula``) nor what is held up by the answer (``plan``). On GPUs
the sum is the worker's own estimate; on CPUs it is only what is certainly taken, held against the
pod's limit of memory. Pure.

Invariant: where anything that the sum needs is not known, nothing is refused.
"""

from dataclasses import dataclass
from enum import StrEnum

from mizzen_operator.planner.memory_formula import (
    EngineSizes,
    division_problem,
    facts_of_rank,
    kv_token_bytes,
    need_on_gpu,
    weights_bytes,
)
from mizzen_operator.planner.memory_options import (
    MemoryOptions,
    UnforeseenError,
    cpu_options,
    gpu_options,
)
from mizzen_operator.render.history import FetchedWeights
from mizzen_operator.spec.gpu_classes import gpu_classes
from mizzen_operator.spec.model import Spec
from mizzen_operator.spec.quantity import quantity_value
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.shape_facts import ShapeFacts
from mizzen_operator.spec.wording import shown

GIB = 1 << 30
_FEWEST_KV_TOKENS = 16
_CLASSES_NAMED = 3


class FitReason(StrEnum):
    """What is known of the fit; the values are reasons of the condition Fits."""

    FITS = "EnoughMemory"
    DOES_NOT_FIT = "InsufficientMemory"
    SIZES_NOT_KNOWN = "SizesNotKnown"
    CLASS_NOT_KNOWN = "UnknownGpuClass"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """The answer, and the sum in words."""

    reason: FitReason
    message: str

    @property
    def is_refused(self) -> bool:
        """Whether no worker pod may be made."""
        return self.reason is FitReason.DOES_NOT_FIT

    @property
    def waits_for(self) -> str:
        """What keeps worker pods away; empty when nothing does."""
        return "the model does not fit: condition Fits shows the sum" if self.is_refused else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What one rank may fill: ``total_bytes`` times ``fraction``; ``name`` tells whose it is."""

    total_bytes: int
    fraction: float
    name: str

    @property
    def allowed_bytes(self) -> int:
        """What the rank may fill."""
        return int(self.total_bytes * self.fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """What one rank takes: ``parts`` by name, and pages of KV memory beside one that is spare."""

    parts: tuple[tuple[str, int], ...]
    page_size: int
    token_bytes: int
    kv_tokens: int | None
    memory: Memory
    step_bytes: int = 0
    """What ``parts`` hold for the largest step and graphs: smaller steps take less."""

    @property
    def fixed_bytes(self) -> int:
        """Everything but KV memory."""
        return sum(size for _, size in self.parts)

    @property
    def most_tokens(self) -> int:
        """Positions of KV memory that there is room for; 0 or less: none."""
        left = self.memory.allowed_bytes - self.fixed_bytes
        return (left // (self.page_size * self.token_bytes) - 1) * self.page_size

    @property
    def wanted_tokens(self) -> int:
        """Whole pages of what is asked for; the one page without which nothing works, at least."""
        return max(1, (self.kv_tokens or 0) // self.page_size) * self.page_size

    @property
    def kv_bytes(self) -> int:
        """Of the wanted tokens, the spare page included."""
        return (self.wanted_tokens + self.page_size) * self.token_bytes

    @property
    def fits(self) -> bool:
        """Whether the wanted tokens have room."""
        return self.most_tokens >= self.wanted_tokens


def fetched_fit(resolved: Resolved, fetched: FetchedWeights | None) -> MemoryFit | None:
    """The fit of the weights as the Job that fetched them told their sizes."""
    source = resolved.spec.model.source
    if source.pvc is not None:
        lack = f"nobody told the sizes of the model on claim {source.pvc.claim_name}"
    elif fetched is None:
        lack = "the model's sizes are told when its weights are fetched"
    else:
        lack = "the Job that fetched the weights did not tell the model's sizes"
    return memory_fit(resolved, None if fetched is None else fetched.facts, lack)


def memory_fit(
    resolved: Resolved, facts: ShapeFacts | None, unknown_because: str
) -> MemoryFit | None:
    """Whether the model fits; None where no memory is stated, so that there is nothing to tell.

    ``unknown_because``: why there are no facts, if there are none.
    """
    gpu, limits = resolved.spec.worker.gpu, resolved.spec.worker.resources.limits
    is_told = bool(gpu.class_name or gpu.memory)
    is_bounded = is_told or (gpu.count_per_node == 0 and facts is not None and "memory" in limits)
    if not is_bounded:
        return None
    if gpu.class_name and gpu.class_name not in gpu_classes(resolved.gpu_classes):
        return MemoryFit(reason=FitReason.CLASS_NOT_KNOWN, message=_unknown_class(resolved))
    problem = unknown_because if facts is None else _unforeseen(resolved, facts)
    if facts is None or problem:
        return _unknown(problem)
    try:
        total = _gpu_sum(resolved, facts) if is_told else _cpu_sum(resolved, facts)
        return _judged(resolved, total)
    except UnforeseenError as error:
        return _unknown(str(error))


def _judged(resolved: Resolved, total: Sum) -> MemoryFit:
    if total.fits:
        return MemoryFit(reason=FitReason.FITS, message=_fitting(total))
    if resolved.spec.worker.gpu.count_per_node:
        ways = _gpu_remedies(resolved, total)
    else:
        ways = _cpu_remedies(resolved, total)
    return MemoryFit(reason=FitReason.DOES_NOT_FIT, message=f"{_lacking(total)}; {ways}")


def _unknown(because: str) -> MemoryFit:
    text = f"not known: {because}; pods start unchecked, and a worker says if it lacks memory"
    return MemoryFit(reason=FitReason.SIZES_NOT_KNOWN, message=text)


def _unknown_class(resolved: Resolved) -> str:
    name = shown(resolved.spec.worker.gpu.class_name)
    known = ", ".join(gpu_classes(resolved.gpu_classes))
    return (
        f"spec.worker.gpu.class: {name} is none of {known}; state spec.worker.gpu.memory instead,"
        " or add it to gpuClasses of the operator's chart; pods start unchecked"
    )


def _unforeseen(resolved: Resolved, facts: ShapeFacts) -> str:
    """Why the formula does not hold for this model; empty if it does."""
    if facts.file_format != "safetensors":
        return f"the sizes of {shown(facts.file_format)} files do not tell what weights take"
    return division_problem(facts, resolved.spec.worker.parallelism.tensor)


def _gpu_sum(resolved: Resolved, facts: ShapeFacts) -> Sum:
    engine, ranks = resolved.spec.engine, resolved.spec.worker.parallelism.tensor
    options = gpu_options(engine)
    own = facts_of_rank(facts, ranks)
    sizes = EngineSizes(
        max_chunk_tokens=options.max_chunk_tokens,
        max_rows=options.max_rows,
        value_bytes=options.value_bytes,
        is_packed=options.is_packed,
        uses_graphs=options.uses_graphs,
        context_length=min(engine.context_length or facts.context_length, facts.context_length),
    )
    need = need_on_gpu(own, sizes, vocab_size=facts.vocab_size)
    return Sum(
        parts=(
            (_weights_name(ranks), need.weights_bytes),
            ("CUDA", need.cuda_bytes),
            ("largest step", need.step_bytes),
            ("graphs", need.graphs_bytes),
        ),
        page_size=options.page_size,
        token_bytes=kv_token_bytes(own, _kv_value_bytes(options, facts)),
        kv_tokens=options.kv_tokens,
        memory=_gpu_memory(resolved, options.fraction),
        step_bytes=need.step_bytes + need.graphs_bytes,
    )


def _kv_value_bytes(options: MemoryOptions, facts: ShapeFacts) -> int:
    # Whether the GPU can do FP8 is not known: what takes less refuses nothing in vain.
    made_for = 1 if facts.has_fp8_kv else options.value_bytes
    return options.kv_value_bytes or made_for


def _cpu_sum(resolved: Resolved, facts: ShapeFacts) -> Sum:
    ranks = resolved.spec.worker.parallelism.tensor
    options = cpu_options(resolved.spec.engine)
    own = facts_of_rank(facts, ranks)
    taken = weights_bytes(own, options.value_bytes, is_packed=options.is_packed)
    return Sum(
        parts=((_weights_name(ranks), taken),),
        page_size=options.page_size,
        token_bytes=kv_token_bytes(own, _kv_value_bytes(options, facts)),
        kv_tokens=options.kv_tokens,
        memory=_pod_memory(resolved),
    )


def _weights_name(ranks: int) -> str:
    return "weights" if ranks == 1 else f"weights of one of {ranks} ranks"


def _gpu_memory(resolved: Resolved, fraction: float) -> Memory:
    gpu = resolved.spec.worker.gpu
    if gpu.memory is not None:
        size, name = int(quantity_value(gpu.memory)), "spec.worker.gpu.memory"
    else:
        name = gpu.class_name or ""
        size = gpu_classes(resolved.gpu_classes)[name]
    return Memory(total_bytes=size, fraction=fraction, name=name)


def _pod_memory(resolved: Resolved) -> Memory:
    """A rank's share of the pod's limit."""
    size = int(quantity_value(resolved.spec.worker.resources.limits["memory"]))
    ranks = _ranks_of_pod(resolved.spec)
    name = "spec.worker.resources.limits.memory"
    return Memory(
        total_bytes=size // ranks,
        fraction=1.0,
        name=name if ranks == 1 else f"{name}, shared by {ranks} ranks",
    )


def _ranks_of_pod(spec: Spec) -> int:
    plan = spec.worker.parallelism
    return plan.tensor * plan.data // plan.nodes


def _fitting(total: Sum) -> str:
    room = f"room for {total.most_tokens} tokens of KV memory x {_kib(total.token_bytes)}"
    if total.kv_tokens is None:
        taken = f"{_parts(total)} = {_gib(total.fixed_bytes)}"
    else:
        taken = f"{_parts(total)} + {_kv(total)} = {_gib(total.fixed_bytes + total.kv_bytes)}"
    return f"{taken} of {_allowed(total.memory)}; {room}"


def _lacking(total: Sum) -> str:
    taken = total.fixed_bytes + total.kv_bytes
    return f"{_parts(total)} + {_kv(total)} = {_gib(taken)} > {_allowed(total.memory)}"


def _parts(total: Sum) -> str:
    return " + ".join(f"{name} {_gib(size)}" for name, size in total.parts)


def _kv(total: Sum) -> str:
    tokens = total.wanted_tokens + total.page_size
    return f"KV {tokens} tokens x {_kib(total.token_bytes)} {_gib(total.kv_bytes)}"


def _allowed(memory: Memory) -> str:
    if memory.fraction == 1:
        return f"{_gib(memory.total_bytes)} ({memory.name})"
    return (
        f"{_gib(memory.allowed_bytes)} ({memory.fraction:g} of the {_gib(memory.total_bytes)} of"
        f" {memory.name})"
    )


def _fewer_tokens(total: Sum) -> list[str]:
    can_shrink = total.wanted_tokens > total.most_tokens >= _FEWEST_KV_TOKENS
    return [f"lower spec.engine.kvTokens to {total.most_tokens}"] if can_shrink else []


def _smaller_steps(total: Sum) -> list[str]:
    least = total.fixed_bytes - total.step_bytes + total.kv_bytes
    ways = ["lower --max-chunk-tokens or --max-running-requests in spec.engine.args"]
    return ways if least < total.memory.allowed_bytes else []


def _gpu_remedies(resolved: Resolved, total: Sum) -> str:
    ways = _fewer_tokens(total) or _smaller_steps(total)
    needed = int((total.fixed_bytes + total.kv_bytes) / total.memory.fraction) + 1
    classes = sorted(gpu_classes(resolved.gpu_classes).items(), key=lambda item: item[1])
    larger = [name for name, size in classes if size >= needed][:_CLASSES_NAMED]
    named = f" ({', '.join(larger)})" if larger else ""
    larger_gpus = f"take GPUs of {_gib(needed)}{named}"
    return ", ".join([*ways, f"or {larger_gpus}" if ways else larger_gpus])


def _cpu_remedies(resolved: Resolved, total: Sum) -> str:
    needed = (total.fixed_bytes + total.kv_bytes) * _ranks_of_pod(resolved.spec)
    raised = f"raise spec.worker.resources.limits.memory well above {_gib(needed)}"
    return ", or ".join([*_fewer_tokens(total), raised])


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def _kib(size: int) -> str:
    return f"{size / 1024:g} KiB"
