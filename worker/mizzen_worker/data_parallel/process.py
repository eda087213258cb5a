"""Owns the controller process: its sockets, its loop, its reports; owns no routes.

Started by the launcher with its whole configuration; imports no torch.
"""

import asyncio
import logging
import time
from pathlib import Path

import uvloop

from mizzen_worker.contracts.ids import InstanceId
from mizzen_worker.contracts.messages import Control, Facts, Reply
from mizzen_worker.data_parallel.controller import MAX_TOKENIZERS, Controller
from mizzen_worker.data_parallel.settings import ControllerSettings
from mizzen_worker.ipc.channel import LAST_WORDS_S
from mizzen_worker.ipc.child_process import run_child
from mizzen_worker.ipc.connection import WorkerConnection
from mizzen_worker.ipc.curve import read_server_keys
from mizzen_worker.ipc.parent_link import Drain, ParentLink, Report, Wishes
from mizzen_worker.ipc.zmq_link import ZmqLinks
from mizzen_worker.ipc.zmq_router import ZmqRouter
from mizzen_worker.observability.recorder import Recorder

logger = logging.getLogger(__name__)

_REPORT_S = 0.25


def main() -> None:
    """Run the process."""
    run_child("controller", ControllerSettings, _run)


def _run(settings: ControllerSettings, link: ParentLink, wishes: Wishes) -> None:
    uvloop.run(_serve(settings, link, wishes))


async def _serve(settings: ControllerSettings, link: ParentLink, wishes: Wishes) -> None:
    recorder = Recorder("controller")
    links = ZmqLinks(max_links=(MAX_TOKENIZERS + 1) * len(settings.ranks))
    keys = None
    if settings.curve_dir is not None and settings.listen.startswith("tcp://"):
        keys = read_server_keys(Path(settings.curve_dir))
    endpoint = ZmqRouter(settings.listen, keys=keys)
    controller = Controller(
        settings.ranks,
        instance_id=InstanceId(settings.instance_id),
        open_link=links.open_link,
        send=endpoint.send,
        recorder=recorder,
        clock=time.monotonic,
    )
    endpoint.begin(controller)
    connections = [
        WorkerConnection(
            address,
            open_link=links.open_link,
            instance_id=InstanceId(f"{settings.instance_id}/controller"),
            listener=controller.ranks,
            clock=time.monotonic,
        )
        for address in settings.ranks
    ]
    tasks = [asyncio.create_task(connection.run()) for connection in connections]
    tasks += [asyncio.create_task(endpoint.run()), asyncio.create_task(controller.run())]
    report = asyncio.create_task(_report(controller, recorder, link, wishes))
    await asyncio.wait({report, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in (report, *tasks):
        if task.done() and task.exception() is not None:
            logger.error("controller fails", exc_info=task.exception())
            raise SystemExit(1)
    await _until_told(controller)
    await endpoint.drain(LAST_WORDS_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await controller.close()
    endpoint.close(linger_s=LAST_WORDS_S)
    links.close()
    logger.info("controller is drained")


async def _until_told(controller: Controller) -> None:
    """Wait until every request's end is passed on: what ranks said last may still be unread."""
    ends_at_s = time.monotonic() + LAST_WORDS_S
    while controller.num_live and time.monotonic() < ends_at_s:  # noqa: ASYNC110 - of many owners
        await asyncio.sleep(0.01)


async def _report(
    controller: Controller, recorder: Recorder, link: ParentLink, wishes: Wishes
) -> None:
    """Say once in a while how it goes, until told to drain: the ranks are drained by then."""
    num_beats = 0
    while True:
        match wishes.take():
            case Drain():
                return
            case Control() as control:
                link.reply(_described(control, controller))
            case None:
                pass
        num_beats += 1
        link.report(
            Report(
                state="ready" if controller.ranks.num_attached else "waiting",
                num_beats=num_beats,
                num_live=controller.num_live,
                metrics=recorder.samples() if num_beats % 4 == 1 else (),
            )
        )
        await asyncio.sleep(_REPORT_S)


def _described(control: Control, controller: Controller) -> Reply:
    facts: Facts = {
        "live_requests": controller.num_live,
        "ranks_attached": controller.ranks.num_attached,
    }
    return Reply(control_id=control.control_id, is_ok=True, message="described", facts=facts)


if __name__ == "__main__":
    main()
