"""Owns the beginning of a follower's process; the follower itself is ``follower.py``'s.

As ``process.py``, which begins a rank that decides.
"""

from mizzen_worker.ipc.child_process import run_child
from mizzen_worker.ipc.parent_link import ParentLink, Report, Wishes
from mizzen_worker.model_executor.head_start import begin_beside_imports
from mizzen_worker.scheduler.rank_settings import FollowerSettings


def main() -> None:
    """Run the process."""
    run_child("follower", FollowerSettings, _run)


def _run(settings: FollowerSettings, link: ParentLink, wishes: Wishes) -> None:
    link.report(Report(state="loading", num_beats=0))
    begin_beside_imports(settings.engine.device)
    from mizzen_worker.scheduler.follower import run_follower  # noqa: PLC0415 - brings torch in

    run_follower(settings, link, wishes)


if __name__ == "__main__":
    main()
