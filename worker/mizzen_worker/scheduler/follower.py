"""Owns the wiring of a follower: model, link, reports; owns no decision and no tokenizer's socket.

What it does is what its leader's scheduler decided (``rank_group``).
"""

import gc
import os
import time
from pathlib import Path

from mizzen_worker.contracts.messages import Control, Reply
from mizzen_worker.ipc.parent_link import Drain, ParentLink, Report, Wishes
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.runner_parts import device_of
from mizzen_worker.observability.metric_names import FOLLOWED_STEPS
from mizzen_worker.observability.recorder import LastTotals, Recorder
from mizzen_worker.rank_group.membership import Followership, join_group, show_life
from mizzen_worker.scheduler.engine_setup import agreed_options, runner_options
from mizzen_worker.scheduler.load_progress import LoadProgress
from mizzen_worker.scheduler.rank_settings import FollowerSettings

_REPORT_S = 1.0


def run_follower(settings: FollowerSettings, link: ParentLink, wishes: Wishes) -> None:
    """Load this rank's part of the model and follow to the leader's end; the process ends here."""
    gc.freeze()
    place = settings.place
    show_life(link, place)
    progress = LoadProgress(link, group_size=place.size)
    options = runner_options(
        settings.engine, Path(settings.model), num_local_ranks=settings.num_local_ranks
    )
    group = join_group(
        place,
        agreed_options(settings.engine, options, place),
        curve_dir=None if settings.curve_dir is None else Path(settings.curve_dir),
        parent=link,
        on_wait=progress.wait,
        device=device_of(options),
    )
    try:
        loaded = load_runner(options, progress, progress.enter, group.collective)
        gc.collect()
        gc.freeze()
        turns = _Turns(link, wishes, group, progress)
        group.follow(loaded.runner, turns.turn)
    except BaseException as error:
        group.fail(str(error))
        raise
    link.report(Report(state="drained", num_beats=0, detail=turns.why_drained))
    # Native libraries take seconds to unload, and a drain's deadline is running.
    os._exit(0)


class _Turns:
    """What a follower looks after between two orders."""

    def __init__(
        self, link: ParentLink, wishes: Wishes, group: Followership, progress: LoadProgress
    ) -> None:
        self._link = link
        self._wishes = wishes
        self._group = group
        self._progress = progress
        self._recorder = Recorder("follower")
        self._totals = LastTotals(self._recorder)
        self._num_turns = 0
        self._reported_s = 0.0
        self._state = "ready"
        self.why_drained = "its leader has drained"

    def turn(self, *, has_begun: bool, num_steps: int) -> None:
        """Note one turn of the loop: report, and take a wish."""
        self._num_turns += 1
        match self._wishes.take():
            case Drain() as wish:
                self._state, self.why_drained = "draining", ""
                self._group.link.wish_drain(wish.mode, wish.deadline_s)
            case Control() as control:
                place = self._group.place
                refusal = f"{place.name} decides nothing; ask its leader, at {place.address}"
                self._link.reply(Reply(control_id=control.control_id, is_ok=False, message=refusal))
            case None:
                pass
        if not has_begun:
            self._progress.wait("waits for the other ranks to load", self._group.place.size)
        elif time.monotonic() - self._reported_s >= _REPORT_S:
            self._reported_s = time.monotonic()
            self._totals.set(((FOLLOWED_STEPS, num_steps),))
            self._link.report(
                Report(
                    state=self._state,
                    num_beats=self._num_turns,
                    metrics=self._recorder.samples(),
                )
            )
