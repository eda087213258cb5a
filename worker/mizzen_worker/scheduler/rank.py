"""Owns the wiring of a rank: model, endpoint, loop, reports; owns no decision, nor the process.

A ``DeviceError`` or ``InvariantError`` ends the process: the launcher starts it again or ends the
pod.
"""

import gc
import hashlib
import logging
import os
import secrets
import time
from pathlib import Path

from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.contracts.ids import InstanceId
from mizzen_worker.contracts.messages import WIRE_VERSION, Control, ModelIdentity
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.ipc.channel import LAST_WORDS_S
from mizzen_worker.ipc.curve import ServerKeys, read_server_keys
from mizzen_worker.ipc.event_publisher import EventPublisher
from mizzen_worker.ipc.parent_link import Drain, ParentLink, Report, Wishes
from mizzen_worker.ipc.pulse import Pulse
from mizzen_worker.ipc.zmq_channel import ZmqEndpoint
from mizzen_worker.model_executor.factory import LoadedModel, load_runner
from mizzen_worker.model_executor.load_phase import LoadPhase
from mizzen_worker.observability.tracing import make_tracer
from mizzen_worker.scheduler.cache_feed import CacheFeed
from mizzen_worker.scheduler.control import DrainOrder
from mizzen_worker.scheduler.engine_setup import is_overlapped, runner_options
from mizzen_worker.scheduler.loop import SchedulerLoop
from mizzen_worker.scheduler.rank_settings import RankSettings
from mizzen_worker.scheduler.reporter import Reporter
from mizzen_worker.scheduler.settings import SchedulerSettings
from mizzen_worker.scheduler.step_mix import MixRule
from mizzen_worker.vocabulary.load import load_vocabulary

logger = logging.getLogger(__name__)

_KEPT_CACHE_EVENTS = 10_000
"""Seconds to minutes of a busy worker, and a few megabytes."""
_PULSE_S = 2.0
"""Silence of the loop after which a thread speaks for it; peers bear 10 s."""


def run_rank(settings: RankSettings, link: ParentLink, wishes: Wishes) -> None:
    """Load the model and serve until a drain is over; the process ends in here."""
    # What was imported is never garbage; collections while loading need not look at it.
    gc.freeze()
    progress = _Progress(link)
    options = runner_options(settings.engine, Path(settings.model))
    loaded = load_runner(options, progress, progress.enter)
    keys = read_server_keys(Path(settings.curve_dir)) if settings.curve_dir is not None else None
    is_tcp = settings.listen.startswith("tcp://")
    endpoint = ZmqEndpoint(settings.listen, clock=time.monotonic, keys=keys if is_tcp else None)
    loop = SchedulerLoop(
        runner=loaded.runner,
        endpoint=endpoint,
        clock=time.monotonic,
        settings=_scheduler_settings(settings, loaded),
    )
    feed = _cache_feed(settings, loop, keys)
    Pulse(lambda: endpoint.beat_for_loop(_PULSE_S), interval_s=_PULSE_S).start()
    logger.info("rank takes work", extra={"address": endpoint.address})
    # What lives as long as the process is never garbage: a collection would stop the loop for it.
    gc.collect()
    gc.freeze()
    tracer = make_tracer(
        settings.trace, process="rank", clock=time.monotonic, wall_clock=_wall_clock
    )
    reporter = Reporter(link, loop, clock=time.monotonic, tracer=tracer)
    try:
        _run_until_drained(loop, reporter, link, wishes, feed)
    except BaseException:
        _give_all_back(loop, endpoint)
        raise
    _say_last_words(loop, endpoint)
    reporter.close(state="draining")
    # Native libraries take seconds to unload, and a drain's deadline is running.
    os._exit(0)


def _run_until_drained(
    loop: SchedulerLoop,
    reporter: Reporter,
    link: ParentLink,
    wishes: Wishes,
    feed: CacheFeed | None,
) -> None:
    is_draining = False
    while not (is_draining and loop.is_drained):
        loop.run_once()
        if feed is not None:
            feed.turn()
        reporter.turn(state="draining" if is_draining else "ready")
        match wishes.take():
            case Drain() as wish:
                is_draining = True
                loop.start_drain(_order_of(wish))
            case Control() as control:
                link.reply(loop.control(control))
            case None:
                pass


def _cache_feed(
    settings: RankSettings, loop: SchedulerLoop, keys: ServerKeys | None
) -> CacheFeed | None:
    address, log = settings.engine.cache_events, loop.cache.event_log
    if address is None or log is None:
        return None
    return CacheFeed(
        cache=loop.cache,
        log=log,
        publisher=EventPublisher(address, keys=keys if address.startswith("tcp://") else None),
        # A rank that was started again has its launcher's id still, and numbers from 0 again.
        instance_id=InstanceId(secrets.token_hex(8)),
    )


def _give_all_back(loop: SchedulerLoop, endpoint: ZmqEndpoint) -> None:
    """Tell every peer to go on elsewhere at once instead of finding out by silence."""
    loop.announce_restart()
    endpoint.close(linger_s=LAST_WORDS_S)


def _say_last_words(loop: SchedulerLoop, endpoint: ZmqEndpoint) -> None:
    """Let the hand-backs leave; a peer without credit does not hold the process up."""
    ends_at_s = time.monotonic() + LAST_WORDS_S
    while endpoint.num_unsent and time.monotonic() < ends_at_s:
        loop.run_once()
    endpoint.close(linger_s=LAST_WORDS_S)
    logger.info("rank is drained")


class _Progress:
    """Reports the phases of loading and how far each one is."""

    def __init__(self, link: ParentLink) -> None:
        self._link = link
        self._num_reports = 0
        self._phase = ""
        self._last_share = -1.0

    def enter(self, phase: LoadPhase) -> None:
        """Note that a phase begins."""
        self._phase = phase.value
        self._report(0.0)

    def __call__(self, num_done: int, num_total: int) -> None:
        """Note progress, at most once per percent."""
        share = num_done / num_total if num_total else 1.0
        if share - self._last_share >= 0.01 or share >= 1:
            self._report(share)

    def _report(self, share: float) -> None:
        self._num_reports += 1
        self._last_share = share
        self._link.report(
            Report(
                state="loading",
                num_beats=self._num_reports,
                progress=share,
                detail=self._phase,
            )
        )


def _scheduler_settings(settings: RankSettings, loaded: LoadedModel) -> SchedulerSettings:
    vocabulary = load_vocabulary(Path(settings.model), is_skipped=settings.skip_tokenizer)
    facts = loaded.facts
    resume = f"{facts.fingerprint} {vocabulary.fingerprint} {WIRE_VERSION}"
    return SchedulerSettings(
        instance_id=InstanceId(settings.instance_id),
        identity=ModelIdentity(
            served_name=settings.served_name,
            fingerprint=facts.fingerprint,
            tokenizer=vocabulary.fingerprint,
            resume_identity=hashlib.sha256(resume.encode()).hexdigest()[:32],
        ),
        eos_token_ids=facts.eos_token_ids,
        max_running=settings.engine.max_running_requests,
        max_queued=settings.engine.max_queued_requests,
        max_chunk_tokens=settings.engine.max_chunk_tokens,
        policy=SchedulePolicy(settings.engine.schedule_policy),
        is_preemptive=settings.engine.priority_preemption,
        ageing_s=settings.engine.queue_ageing_s,
        cache_eviction=CacheEviction(settings.engine.cache_eviction),
        num_kept_cache_events=0 if settings.engine.cache_events is None else _KEPT_CACHE_EVENTS,
        is_overlapped=is_overlapped(settings.engine),
        mix=MixRule(patience_s=settings.engine.decode_patience_s),
    )


def _wall_clock() -> float:
    return time.time()  # noqa: TID251 - the edge where wall-clock time enters


def _order_of(wish: Drain) -> DrainOrder:
    return DrainOrder(mode=wish.mode, deadline=time.monotonic() + wish.deadline_s)
