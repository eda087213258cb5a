"""Owns the wiring of a rank: model, endpoint, loop, reports; owns no decision, nor the process.

A ``DeviceError``, ``InvariantError`` or ``RankGroupError`` ends the process: the launcher starts it
again or ends the pod.
"""

import gc
import hashlib
import logging
import os
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path

from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.contracts.drain import DrainMode
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
from mizzen_worker.model_executor.runner_parts import device_of
from mizzen_worker.observability.tracing import make_tracer
from mizzen_worker.rank_group.membership import Leadership, lead_group, show_life
from mizzen_worker.scheduler.cache_feed import CacheFeed
from mizzen_worker.scheduler.control import DrainOrder
from mizzen_worker.scheduler.engine_setup import (
    agreed_options,
    is_overlapped,
    runner_options,
)
from mizzen_worker.scheduler.load_progress import LoadProgress
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
    place = settings.place
    progress = LoadProgress(link, group_size=1 if place is None else place.size)
    options = runner_options(
        settings.engine, Path(settings.model), num_local_ranks=settings.num_local_ranks
    )
    if place is None:
        loaded = load_runner(options, progress, progress.enter)
        _serve(settings, link, wishes, loaded, None)
    else:
        show_life(link, place)
        group = lead_group(
            place,
            agreed_options(settings.engine, options, place),
            curve_dir=None if settings.curve_dir is None else Path(settings.curve_dir),
            parent=link,
            on_wait=progress.wait,
            device=device_of(options),
        )
        try:
            loaded = load_runner(options, progress, progress.enter, group.collective)
            runner = group.lead(loaded.runner, progress.wait)
            _serve(settings, link, wishes, replace(loaded, runner=runner), group)
        except BaseException as error:
            group.fail(str(error))
            raise
    # Native libraries take seconds to unload, and a drain's deadline is running.
    os._exit(0)


def _serve(
    settings: RankSettings,
    link: ParentLink,
    wishes: Wishes,
    loaded: LoadedModel,
    group: Leadership | None,
) -> None:
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
    reporter = Reporter(
        link,
        loop,
        clock=time.monotonic,
        tracer=tracer,
        more_metrics=tuple if group is None else group.metrics,
    )
    turns = _Turns(loop=loop, reporter=reporter, feed=feed, link=link, wishes=wishes, group=group)
    try:
        turns.run_until_drained()
    except BaseException:
        _give_all_back(loop, endpoint)
        raise
    if group is not None:
        group.part()
    _say_last_words(loop, endpoint)
    reporter.close(state="draining")
    link.report(Report(state="drained", num_beats=0, detail=turns.why_drained))


@dataclass(slots=True, kw_only=True)
class _Turns:
    """Iterations of a rank's loop, and what is looked after between them."""

    loop: SchedulerLoop
    reporter: Reporter
    feed: CacheFeed | None
    link: ParentLink
    wishes: Wishes
    group: Leadership | None
    why_drained: str = ""
    """Empty where the launcher asked for it."""
    _is_draining: bool = False

    def run_until_drained(self) -> None:
        """Serve; what ``run_once`` raises goes through, and ``RankGroupError``."""
        while not (self._is_draining and self.loop.is_drained):
            self.loop.run_once()
            if self.feed is not None:
                self.feed.turn()
            self.reporter.turn(state="draining" if self._is_draining else "ready")
            self._take_wish()
            self._look_after_group()

    def _take_wish(self) -> None:
        match self.wishes.take():
            case Drain() as wish:
                self._drain(wish.mode, wish.deadline_s)
            case Control() as control:
                self.link.reply(self.loop.control(control))
            case None:
                pass

    def _look_after_group(self) -> None:
        wish = None if self.group is None else self.group.turn()
        if wish is not None and not self._is_draining:
            self.why_drained = f"rank {wish.rank} of its group had to drain"
            self._drain(wish.mode, wish.deadline_s)

    def _drain(self, mode: DrainMode, deadline_s: float) -> None:
        self._is_draining = True
        self.loop.start_drain(DrainOrder(mode=mode, deadline=time.monotonic() + deadline_s))


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
