"""Owns the path ``ScheduleBatch`` to ``StepResult`` on one device; plans nothing.

Implements ``contracts.batch.Runner``: pack and upload what the passes need, then what is done with
their logits; the changes of slots and pages, the model's passes, scores, sampling, record, one
download. On a CPU a step has run when ``launch`` returns; on a CUDA device nothing in ``launch``
waits, only ``settle`` does.
"""

from dataclasses import dataclass

import numpy as np
import torch

from mizzen_worker.contracts.batch import Int64Array, PendingStep, RunnerLimits, ScheduleBatch
from mizzen_worker.contracts.errors import DeviceError
from mizzen_worker.kernels.native_library import INSTRUCTION_SETS
from mizzen_worker.layers.collective import Collective
from mizzen_worker.model_executor.batch_check import require_sound
from mizzen_worker.model_executor.captured_steps import CapturedSteps, MakeCapturedSteps
from mizzen_worker.model_executor.device_link import (
    DeviceLink,
    StagedStep,
    StepPack,
    link_to,
)
from mizzen_worker.model_executor.forward import Forward
from mizzen_worker.model_executor.launched_step import FinitenessWatch, LaunchedStep, ScoreLayout
from mizzen_worker.model_executor.pass_inputs import PassInputs, pack_pass, unpack_pass
from mizzen_worker.model_executor.slot_sampling import (
    SampledRows,
    SlotSampling,
    unpack_sampling,
)
from mizzen_worker.model_executor.slot_state import SlotState
from mizzen_worker.model_executor.slot_table import SlotTable
from mizzen_worker.model_executor.step_passes import ModelPass, plan_passes
from mizzen_worker.model_executor.tail import Tail
from mizzen_worker.model_executor.weights.progress import ProgressCallback
from mizzen_worker.sampler.sampler import Sampled, sample
from mizzen_worker.sampler.sampling_batch import SamplingBatch
from mizzen_worker.sampler.scores import Scores, join_scores, score

_MAX_SCORED_POSITIONS = 256
"""Prompt positions whose logits one pass computes: bounds their memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passes:
    """The passes of a step, and the words that came to the device for them."""

    inputs: tuple[PassInputs, ...]
    pack: StepPack
    words: torch.Tensor
    begun: torch.Tensor | None
    """Logits of the first pass, if that is a captured one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampling:
    """What is done with a step's logits."""

    num_sampled: int
    num_top: int
    layout: ScoreLayout


class ModelRunner:
    """Executes steps in order. Not thread safe."""

    def __init__(
        self,
        forward: Forward,
        limits: RunnerLimits,
        device: torch.device,
        link: DeviceLink | None = None,
        make_captured: MakeCapturedSteps | None = None,
        collective: Collective | None = None,
    ) -> None:
        """``link`` None takes the one that fits the device.

        With ``make_captured``, steps run as captured ones, once ``warm_up`` has been called. With a
        ``collective``, its rank 0 chooses tokens and scores them; other ranks' results have no
        scores.
        """
        self._collective = collective
        self._is_leader = collective is None or collective.rank == 0
        self._forward = forward
        self._limits = limits
        self._device = device
        self._slots = SlotState(limits, device)
        self._sampling = SlotSampling(limits.max_slots, limits.vocab_size)
        self._link = link or link_to(device)
        self._watch = FinitenessWatch()
        self._table = None if make_captured is None else SlotTable(limits.max_slots, device)
        self._captured: CapturedSteps | None = None
        if make_captured is not None and self._table is not None:
            self._captured = make_captured(self._slots, self._table)
        is_native = device.type == "cpu" and INSTRUCTION_SETS
        self._instruction_set = INSTRUCTION_SETS[0] if is_native else None

    @property
    def limits(self) -> RunnerLimits:
        """See ``Runner``."""
        return self._limits

    def warm_up(self, progress: ProgressCallback) -> None:
        """Capture what can be, before the first step; ``progress`` takes (done, all)."""
        if self._captured is not None:
            with torch.inference_mode():
                self._captured.capture(progress)

    def launch(self, batch: ScheduleBatch) -> PendingStep:
        """See ``Runner``."""
        require_sound(batch, self._limits)
        try:
            with torch.inference_mode():
                if self._captured is not None and self._captured.can_launch(batch):
                    tail = self._sampling.tail(batch.decodes)
                    if tail is not Tail.UNFIT:
                        return self._launch_captured(self._captured, batch, tail)
                return self._launch_eagerly(batch)
        except RuntimeError as error:
            message = f"step {batch.step} failed on the device: {error}"
            raise DeviceError(message) from error

    def _launch_eagerly(self, batch: ScheduleBatch) -> LaunchedStep:
        pack, later = StepPack(), StepPack()
        planned = self._pack_forward(pack, batch)
        inputs = tuple(
            pack_pass(pack, part, prefix=f"{number}.", page_size=self._limits.page_size)
            for number, part in enumerate(planned)
        )
        words = self._link.upload(pack.words())
        # Before anything else, so that the device has work while the host prepares the rest.
        begun = self._run_captured(inputs[0], pack, words)
        passes = _Passes(inputs=inputs, pack=pack, words=words, begun=begun)
        self._enter_sampling(later, batch)
        sampling = self._pack_sampling(later, batch, planned)
        staged = later.unpack(self._link.upload(later.words()))
        if begun is None or len(inputs) > 1 or self._has_more(pack, inputs[0]):
            staged = pack.unpack(words).joined(staged)
            self._slots.change(staged)
        download = self._link.download(self._run(passes, sampling, staged))
        if self._table is not None:
            # Last: only captured steps after this one read it, and the device has work by now.
            self._table.change(staged)
        return LaunchedStep(batch.step, download, sampling.layout, self._watch)

    def _has_more(self, pack: StepPack, inputs: PassInputs) -> bool:
        """Whether there is more in a pack than a captured forward takes: it enters slots and pages.

        What is not asked of the device again is not waited for behind the forward.
        """
        return bool(pack.size(inputs.prefix + "targets")) or self._slots.tallies.has_resets(pack)

    def _launch_captured(
        self, captured: CapturedSteps, batch: ScheduleBatch, tail: Tail
    ) -> LaunchedStep:
        """A captured step; where that ends with its logits, the rest of it follows eagerly."""
        launched = captured.launch(batch, tail)
        if launched.logits is None:
            num_rows = len(batch.decodes.slots)
            layout = ScoreLayout(num_sampled=num_rows, sampled=None, prompt=())
            return LaunchedStep(batch.step, launched.outcome, layout, self._watch)
        pack = StepPack()
        sampling = self._pack_sampling(pack, batch, ())
        staged = pack.unpack(self._link.upload(pack.words()))
        outcome, scores = self._sample(sampling, staged, launched.logits)
        download = self._link.download(_outputs(outcome, scores))
        return LaunchedStep(batch.step, download, sampling.layout, self._watch)

    def _pack_forward(self, pack: StepPack, batch: ScheduleBatch) -> tuple[ModelPass, ...]:
        """What the passes need beside their rows: requests enter, and pages."""
        for init in batch.slot_inits:
            self._slots.tallies.enter(init)
        self._slots.pack_changes(pack, batch.slot_inits, batch.page_writes)
        planned = plan_passes(batch.extends, batch.decodes, max_targets=_MAX_SCORED_POSITIONS)
        if len(planned) > 1:
            pack.add_integers("sampled_order", _sampled_order(planned, len(batch.extends)))
        return planned

    def _enter_sampling(self, pack: StepPack, batch: ScheduleBatch) -> None:
        """Let requests enter with what they want of their tokens."""
        for init in batch.slot_inits:
            self._sampling.enter(init)
        if self._table is not None and batch.slot_inits:
            self._table.pack(pack, self._sampling.columns(batch.slot_inits))

    def _pack_sampling(
        self, pack: StepPack, batch: ScheduleBatch, passes: tuple[ModelPass, ...]
    ) -> _Sampling:
        """What is done with the logits of the passes."""
        rows = _sampled_rows(batch)
        if len(rows.slots):
            self._sampling.pack(pack, rows, self._slots.tallies)
        asked = np.flatnonzero(self._sampling.num_top(rows.slots) >= 0)
        if len(asked):
            pack.add_integers("asked", asked)
        return _Sampling(
            num_sampled=len(rows.slots),
            num_top=self._num_top(batch),
            layout=ScoreLayout(
                num_sampled=len(rows.slots),
                sampled=asked if len(asked) else None,
                prompt=_prompt_layout(passes),
            ),
        )

    def _num_top(self, batch: ScheduleBatch) -> int:
        """The most alternatives that a row of the step wants."""
        extending = np.array([row.slot for row in batch.extends], dtype=np.int32)
        slots = np.concatenate([extending, batch.decodes.slots])
        return int(self._sampling.num_top(slots).max(initial=0))

    def _run(self, passes: _Passes, sampling: _Sampling, staged: StagedStep) -> list[torch.Tensor]:
        """What the step gives, on the device: see ``SlotState.record``, then scores if any."""
        logits, prompt_scores = self._run_passes(passes, sampling, staged)
        outcome = torch.empty(2, 0, dtype=torch.int64, device=self._device)
        scores: list[Scores] = []
        if sampling.num_sampled:
            outcome, scores = self._sample(sampling, staged, logits)
        return _outputs(outcome, scores + prompt_scores)

    def _run_passes(
        self, passes: _Passes, sampling: _Sampling, staged: StagedStep
    ) -> tuple[torch.Tensor, list[Scores]]:
        """Logits [num_sampled, vocab] of the sampled rows, and scores of prompt positions."""
        sampled: list[torch.Tensor] = []
        scores: list[Scores] = []
        for inputs in passes.inputs:
            if not len(inputs.row_lengths):
                continue
            logits = self._logits(inputs, passes, staged)
            targets = staged.longs.get(inputs.prefix + "targets")
            if targets is not None and self._is_leader:
                scores.append(score(logits[inputs.num_sampled :], targets, sampling.num_top))
            own = logits[: inputs.num_sampled]
            # A forward's result is valid until its next call only.
            sampled.append(own if len(passes.inputs) == 1 else own.clone())
        if len(sampled) == 1:
            return sampled[0], scores
        if not sampled:
            return torch.empty(0, 0, device=self._device), scores
        return torch.cat(sampled)[staged.longs["sampled_order"]], scores

    def _logits(self, inputs: PassInputs, passes: _Passes, staged: StagedStep) -> torch.Tensor:
        """See ``Forward.run``."""
        logits = passes.begun
        if inputs is not passes.inputs[0]:
            logits = self._run_captured(inputs, passes.pack, passes.words)
        if logits is not None:
            return logits
        batch = unpack_pass(inputs, staged, self._slots, self._limits.page_size)
        return self._forward.run(batch)

    def _run_captured(
        self, inputs: PassInputs, pack: StepPack, words: torch.Tensor
    ) -> torch.Tensor | None:
        """See ``CapturedSteps.run_pass``."""
        if self._captured is None:
            return None
        return self._captured.run_pass(inputs, pack, words)

    def _sample(
        self, sampling: _Sampling, staged: StagedStep, logits: torch.Tensor
    ) -> tuple[torch.Tensor, list[Scores]]:
        batch = unpack_sampling(staged, self._slots.tallies)
        raw = asked = staged.longs.get("asked")
        if asked is not None:
            raw = logits[asked] if batch.is_adjusted or len(asked) < len(logits) else logits
        sampled = self._choose(logits, batch)
        scores: list[Scores] = []
        if raw is not None and asked is not None and self._is_leader:
            scores.append(score(raw, sampled.tokens[asked], sampling.num_top))
        return self._slots.record(staged, sampled), scores

    def _choose(self, logits: torch.Tensor, batch: SamplingBatch) -> Sampled:
        """On rank 0; what it chose becomes every rank's next input."""
        if self._collective is None:
            return sample(logits, batch, self._instruction_set)
        choice = torch.empty(2, len(logits), dtype=torch.int64, device=logits.device)
        if self._is_leader:
            sampled = sample(logits, batch, self._instruction_set)
            choice[0], choice[1] = sampled.tokens, sampled.is_valid
        self._collective.copy_from_leader(choice)
        return Sampled(tokens=choice[0], is_valid=choice[1].bool())


def _outputs(outcome: torch.Tensor, scores: list[Scores]) -> list[torch.Tensor]:
    """What a step tells the host."""
    return [outcome, *(join_scores(scores).tensors() if scores else ())]


def _sampled_rows(batch: ScheduleBatch) -> SampledRows:
    rows = [row for row in batch.extends if row.is_sampled]
    slots = np.array([row.slot for row in rows], dtype=np.int32)
    positions = np.array([row.start + row.num_new for row in rows], dtype=np.int32)
    return SampledRows(
        slots=np.concatenate([slots, batch.decodes.slots]),
        positions=np.concatenate([positions, batch.decodes.starts + 1]),
    )


def _sampled_order(passes: tuple[ModelPass, ...], num_extends: int) -> Int64Array:
    """Where the sampled rows, in the step's order, lie in the passes' order."""
    origins: list[int] = []
    for part in passes:
        rows = zip(part.origins, part.extends, strict=True)
        origins += [origin for origin, row in rows if row.is_sampled]
        origins += range(num_extends, num_extends + len(part.decodes.slots))
    return np.argsort(np.array(origins, dtype=np.int64))


def _prompt_layout(passes: tuple[ModelPass, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(
        (origin, len(row.target_ids))
        for part in passes
        for origin, row in zip(part.origins, part.extends, strict=True)
        if row.target_ids is not None
    )
