"""Owns the beginning of a rank's process; the rank itself is ``rank.py``'s.

Started by the launcher with its whole configuration. Imports nothing heavy before that is read:
what else a GPU needs then begins beside the import of torch.
"""

from mizzen_worker.ipc.child_process import run_child
from mizzen_worker.ipc.parent_link import ParentLink, Report, Wishes
from mizzen_worker.model_executor.head_start import begin_beside_imports
from mizzen_worker.scheduler.rank_settings import RankSettings


def main() -> None:
    """Run the process."""
    run_child("rank", RankSettings, _run)


def _run(settings: RankSettings, link: ParentLink, wishes: Wishes) -> None:
    link.report(Report(state="loading", num_beats=0))
    begin_beside_imports(settings.engine.device)
    from mizzen_worker.scheduler.rank import run_rank  # noqa: PLC0415 - brings torch in

    run_rank(settings, link, wishes)


if __name__ == "__main__":
    main()
