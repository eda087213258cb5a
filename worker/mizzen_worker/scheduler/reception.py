"""Owns the conversation with tokenizer processes: peers, draining, heartbeats; owns no request.

Every message is answered by rule and none raises: what a peer sends wrong is answered to that peer.
Invariant: a ``Submit`` of an attached peer becomes a live request or gets its terminal event, once.
"""

import logging
from collections.abc import Callable

from mizzen_worker.cache.page_key import Namespace
from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.ids import PeerId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Abort,
    Attach,
    Control,
    ControlVerb,
    Facts,
    Finished,
    HandBack,
    HandBackCause,
    Heartbeat,
    Hello,
    Reply,
    Submit,
    ToWorker,
)
from mizzen_worker.contracts.request import FinishKind, FinishReason, Usage
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.ipc.channel import WorkerEndpoint
from mizzen_worker.scheduler import control
from mizzen_worker.scheduler.control import DrainOrder
from mizzen_worker.scheduler.ending import Ending
from mizzen_worker.scheduler.intake import max_request_tokens, refusal
from mizzen_worker.scheduler.req import Req
from mizzen_worker.scheduler.settle import finish_after_last_token
from mizzen_worker.scheduler.state import SchedulerState

logger = logging.getLogger(__name__)

_ABORTED = FinishReason(kind=FinishKind.ABORT)
_SUPERSEDED = FinishReason(kind=FinishKind.ABORT, message="superseded by a later attempt")


class Reception:
    """Takes messages in and keeps the peers informed."""

    def __init__(
        self,
        state: SchedulerState,
        *,
        endpoint: WorkerEndpoint,
        ending: Ending,
        settle: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """``settle`` settles every step in flight; for what must know all tokens."""
        self._state = state
        self._endpoint = endpoint
        self._ending = ending
        self._settle = settle
        self._clock = clock
        self._peers: dict[PeerId, None] = {}  # in the order of attaching
        self._next_beat = clock()
        self._num_arrived = 0
        self.drain: DrainOrder | None = None

    def receive(self) -> None:
        """Take in what has arrived, waiting a little when there is nothing else to do."""
        for peer in self._endpoint.lost_peers():
            self._lose(peer)
        settings = self._state.settings
        is_idle = not self._state.roster.running
        limit = settings.max_messages_when_idle if is_idle else settings.max_messages_per_step
        for peer, message in self._endpoint.receive(limit, self._wait_s()):
            self._take(peer, message)

    def beat(self) -> None:
        """Tell every peer the load, once per interval."""
        now = self._clock()
        if now < self._next_beat:
            return
        self._next_beat = now + self._state.settings.heartbeat_interval_s
        heartbeat = Heartbeat(load=self._state.load(is_draining=self.drain is not None))
        for peer in self._peers:
            self._endpoint.send(peer, heartbeat)

    def start_drain(self, drain: DrainOrder) -> None:
        """Refuse new work from now on, and give live work back where the mode says so."""
        self.drain = drain
        if drain.mode is DrainMode.HANDBACK:
            self._settle()
            for req in self._state.roster.live():
                self._ending.hand_back(req, HandBackCause.DRAINING)

    def control(self, message: Control) -> Reply:
        """Do or tell what an administrator wants."""
        state = self._state
        match message.verb:
            case ControlVerb.FLUSH_CACHE:
                self._settle()
                num_freed = state.residency.cache.flush()
                page_size = state.limits.page_size
                facts: Facts = {
                    "freed_kv_tokens": num_freed * page_size,
                    "kept_kv_tokens": state.kv_tokens_cached(),
                }
                return control.accepted(message, "flushed what no request uses", facts)
            case ControlVerb.DRAIN:
                drain = control.parse_drain(message.arguments, self._clock())
                if isinstance(drain, str):
                    return control.refused(message, drain)
                num_live = len(state.roster)
                self.start_drain(drain)
                facts = {"live_requests": num_live, "mode": drain.mode.value}
                return control.accepted(message, "draining", facts)
            case ControlVerb.DESCRIBE:
                facts = control.describe(state, self._clock())
                return control.accepted(message, "described", facts)
            case ControlVerb.ABORT:
                ended = self._named(message.arguments.get("request_id"))
                for req in ended:
                    self._ending.finish(req, _ABORTED)
                facts = {"ended": len(ended)}
                return control.accepted(message, "aborted", facts)

    def _wait_s(self) -> float:
        if len(self._state.roster):
            return 0.0
        until_beat = self._next_beat - self._clock()
        return max(0.0, min(until_beat, self._state.settings.max_idle_wait_s))

    def _take(self, peer: PeerId, message: ToWorker) -> None:
        match message:
            case Submit():
                self._submit(peer, message)
            case Abort():
                self._abort(peer, message)
            case Attach():
                self._attach(peer)
            case Control():
                self._endpoint.send(peer, self.control(message))
            case Heartbeat():
                pass  # The endpoint has booked its credit.

    def _attach(self, peer: PeerId) -> None:
        self._peers[peer] = None
        hello = Hello(
            wire_version=WIRE_VERSION,
            instance_id=self._state.settings.instance_id,
            identity=self._state.settings.identity,
            capacity=self._state.capacity(),
            load=self._state.load(is_draining=self.drain is not None),
        )
        self._endpoint.send(peer, hello)

    def _submit(self, peer: PeerId, submit: Submit) -> None:
        if self.drain is not None:
            self._send_back(peer, submit, HandBackCause.DRAINING)
            return
        live = self._state.roster.get(submit.request_id)
        if live is not None:
            if live.peer != peer:
                self._refuse(peer, submit, "request_id: in use by another peer; draw a new one")
                return
            if submit.generation <= live.generation:
                logger.warning("dropped a repeated submit of request %s", submit.request_id)
                return
            self._ending.finish(live, _SUPERSEDED)
        reason = refusal(submit, self._state.limits)
        if reason is not None:
            self._refuse(peer, submit, reason)
            return
        if self._is_full() and not self._make_room(submit):
            self._send_back(peer, submit, HandBackCause.QUEUE_FULL)
            return
        self._accept(peer, submit)

    def _is_full(self) -> bool:
        roster = self._state.roster
        num_startable = self._state.max_running - len(roster.running)
        return len(roster.waiting) >= self._state.settings.max_queued + num_startable

    def _make_room(self, submit: Submit) -> bool:
        """Give the last of the queue back for a more urgent newcomer, unless it has been served."""
        if self._state.settings.policy is not SchedulePolicy.PRIORITY:
            return False
        last = self._state.roster.waiting.last()
        if last is None or last.num_cached is not None or last.num_output:
            return False
        overdue_before = self._clock() - self._state.settings.ageing_s
        if last.standing.priority >= submit.priority or last.arrived_at < overdue_before:
            return False
        self._ending.hand_back(last, HandBackCause.QUEUE_FULL, retry_after_s=self._retry_after_s())
        return True

    def _retry_after_s(self) -> float:
        return self._state.wait_prediction.seconds(
            num_ahead=len(self._state.roster.waiting), now=self._clock()
        )

    def _accept(self, peer: PeerId, submit: Submit) -> None:
        self._num_arrived += 1
        settings, now = self._state.settings, self._clock()
        is_ranked = settings.policy is SchedulePolicy.PRIORITY
        namespace = Namespace(model=settings.identity.fingerprint, salt=submit.cache_salt)
        req = Req(
            submit,
            peer=peer,
            order=self._num_arrived,
            context_length=max_request_tokens(self._state.limits),
            priority=submit.priority if is_ranked else 0,
            arrived_at=now,
            deadline=None if submit.deadline_s is None else now + submit.deadline_s,
            namespace=namespace.digest(),
            needs_cpu_token=settings.needs_cpu_token(submit),
        )
        self._state.roster.add(req)
        if req.num_output:
            # An earlier attempt may have ended with its last token, unheard.
            reason = finish_after_last_token(req, eos_token_ids=settings.eos_token_ids)
            if reason is not None:
                self._ending.finish(req, reason)

    def _abort(self, peer: PeerId, abort: Abort) -> None:
        req = self._state.roster.get(abort.request_id)
        if req is None or req.peer != peer or req.generation != abort.generation:
            return  # It ended already, and its terminal event is on the way.
        self._ending.finish(req, _ABORTED)

    def _refuse(self, peer: PeerId, submit: Submit, message: str) -> None:
        self._state.counters.finished_requests[FinishKind.ERROR] += 1
        finished = Finished(
            request_id=submit.request_id,
            generation=submit.generation,
            reason=FinishReason(kind=FinishKind.ERROR, message=message),
            usage=Usage(
                prompt_tokens=len(submit.prompt_ids),
                completion_tokens=len(submit.generated_ids),
                cached_tokens=0,
            ),
        )
        self._endpoint.send(peer, finished)

    def _send_back(self, peer: PeerId, submit: Submit, cause: HandBackCause) -> None:
        self._state.counters.handed_back_requests += 1
        is_full = cause is HandBackCause.QUEUE_FULL
        message = HandBack(
            request_id=submit.request_id,
            generation=submit.generation,
            cause=cause,
            retry_after_s=self._retry_after_s() if is_full else None,
        )
        self._endpoint.send(peer, message)

    def _named(self, name: str | None) -> list[Req]:
        """Give the live requests of an id or of a client's own name; every live one for None."""
        live = self._state.roster.live()
        return (
            live if name is None else [req for req in live if name in {req.request_id, req.log_id}]
        )

    def _lose(self, peer: PeerId) -> None:
        self._peers.pop(peer, None)
        for req in self._state.roster.of_peer(peer):
            self._ending.abandon(req)
        self._state.output.forget(peer)
