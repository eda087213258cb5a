"""Owns which worker runs a request and what it is told: first attempt, resume, stop.

Owns no tokens and ends no request. Invariants: a request is counted at a worker exactly while it
runs there; every attempt has a new generation; a new attempt asks only for what is not recorded.
"""

from collections.abc import Callable

import msgspec

from mizzen_worker.contracts.ids import Generation
from mizzen_worker.contracts.messages import Abort, Submit, ToWorker
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.routing.worker_choice import choose_worker
from mizzen_worker.routing.workers import Workers
from mizzen_worker.tokenizer.manager_settings import ManagerSettings
from mizzen_worker.tokenizer.request_state import Phase, RequestState

Send = Callable[[str, ToWorker], bool]
"""Queues a message for the worker at an address; False when it cannot take it now."""


class Attempts:
    """Attempts of every live request of a TokenizerManager."""

    def __init__(
        self,
        *,
        workers: Workers,
        send: Send,
        clock: Callable[[], float],
        settings: ManagerSettings,
    ) -> None:
        self._workers = workers
        self._send = send
        self._clock = clock
        self._settings = settings

    def begin(self, state: RequestState) -> bool:
        """Hand a waiting request, with its tokens so far, to a worker; False when nobody takes it.

        One that lost too many workers gets no further one.
        """
        excluded = set(state.tried)
        while state.num_lost < self._settings.max_lost_workers:
            address = choose_worker(
                self._workers.views(),
                prefix=state.prefix,
                memory=self._workers.memory,
                resume_identity=state.resume_identity,
                excluded=excluded,
            )
            if address is None:
                return False
            if self._submit_to(address, state):
                return True
            excluded.add(address)
        return False

    def stop(self, state: RequestState) -> None:
        """Tell the worker of a running request to stop it."""
        if state.worker is not None:
            self._send(
                state.worker, Abort(request_id=state.request_id, generation=state.generation)
            )
            self.note_departure(state)

    def note_departure(self, state: RequestState) -> None:
        """Count a request out that its worker ended or gave back."""
        if state.worker is not None:
            self._workers.note_departure(state.worker)

    def _submit_to(self, address: str, state: RequestState) -> bool:
        wanted = state.wanted
        generation = Generation(state.generation + 1)
        now_s = self._clock()
        is_sent = self._send(
            address,
            Submit(
                request_id=state.request_id,
                generation=generation,
                prompt_ids=wanted.prompt_ids,
                sampling=_sampling_of_rest(state),
                generated_ids=state.output_ids(),
                deadline_s=_seconds_left(state, now_s),
                priority=wanted.priority,
                cache_salt=wanted.cache_salt,
                log_id=wanted.log_id,
                traceparent=wanted.traceparent,
            ),
        )
        if is_sent:
            state.generation = generation
            state.resume_identity = self._workers.identity(address).resume_identity
            state.move(Phase.RUNNING, now_s)
            state.worker = address
            self._workers.note_arrival(address, state.prefix, state.num_output)
        return is_sent


def _seconds_left(state: RequestState, now_s: float) -> float | None:
    """Give what is left of a request's time; none once it is over, which its worker says."""
    return None if state.wanted.deadline_s is None else max(0.0, state.deadline_at_s - now_s)


def _sampling_of_rest(state: RequestState) -> SamplingParams:
    """Leave out of what was asked the prompt scores that an earlier attempt gave."""
    sampling = state.wanted.sampling
    first = state.first_scored
    if sampling.logprobs is None or first is None:
        return sampling
    missing = first + len(state.prompt_logprobs)
    is_complete = state.num_output > 0 or missing >= len(state.wanted.prompt_ids)
    logprobs = msgspec.structs.replace(
        sampling.logprobs, prompt_start=None if is_complete else missing
    )
    return msgspec.structs.replace(sampling, logprobs=logprobs)
