"""A tokenizer's conversation with its ranks: what a rank said before its end is passed on first."""

import asyncio
from collections.abc import Sequence

from mizzen_worker.contracts.ids import Generation, InstanceId, RequestId, TokenId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Attach,
    Capacity,
    Finished,
    HandBack,
    Hello,
    Load,
    ModelIdentity,
    Submit,
    ToTokenizer,
)
from mizzen_worker.contracts.request import FinishKind, FinishReason, SamplingParams, Usage
from mizzen_worker.data_parallel.ranks import Ranks
from mizzen_worker.data_parallel.session import Session
from mizzen_worker.ipc.codec import to_tokenizer_codec, to_worker_codec
from mizzen_worker.ipc.link import LinkLostError

RANK = "memory://rank"
ENCODE, DECODE = to_tokenizer_codec().encode, to_tokenizer_codec().decode
SUBMIT = Submit(
    request_id=RequestId("r"),
    generation=Generation(0),
    prompt_ids=(TokenId(1),),
    sampling=SamplingParams(max_new_tokens=3, seed=0),
)
FINISHED = Finished(
    request_id=SUBMIT.request_id,
    generation=SUBMIT.generation,
    reason=FinishReason(kind=FinishKind.LENGTH),
    usage=Usage(prompt_tokens=1, completion_tokens=3, cached_tokens=0),
)
HELLO = Hello(
    wire_version=WIRE_VERSION,
    instance_id=InstanceId("rank"),
    identity=ModelIdentity(served_name="m", fingerprint="f", tokenizer="t", resume_identity="r"),
    capacity=Capacity(
        max_running_requests=8, max_queued_requests=8, kv_tokens=64, context_length=64
    ),
    load=Load(running_requests=0, queued_requests=0, kv_tokens_used=0, is_draining=False),
)


class RankLink:
    """A rank's words come when the test says so; None is the connection's end."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[ToTokenizer | None] = asyncio.Queue()

    def send(self, payload: bytes) -> bool:
        return True

    async def receive(self) -> Sequence[bytes]:
        word = await self.words.get()
        if word is None:
            raise LinkLostError("ended")
        return [ENCODE(word)]

    def close(self) -> None:
        """Lose what has not arrived, as a real one does."""
        while not self.words.empty():
            self.words.get_nowait()
        self.words.put_nowait(None)


async def _told_after_its_loss(last: Sequence[ToTokenizer]) -> list[ToTokenizer]:
    """What a tokenizer hears of a rank that another connection has seen end before."""
    links: list[RankLink] = []
    told: asyncio.Queue[ToTokenizer] = asyncio.Queue()

    def open_link(_address: str) -> RankLink:
        links.append(RankLink())
        return links[-1]

    ranks = Ranks([RANK], instance_id=InstanceId("w"), on_rank_lost=lambda _address: None)
    attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("t"), credit=10)
    session = Session(
        attach,
        ranks=ranks,
        open_link=open_link,
        send=lambda payload: told.put_nowait(DECODE(payload)),
        now_s=0.0,
    )
    ranks.on_attached(RANK, HELLO)
    session.start()
    while not links:  # noqa: ASYNC110 - opened by the session's own task
        await asyncio.sleep(0)
    links[0].words.put_nowait(HELLO)
    assert isinstance(await told.get(), Hello)
    session.take(SUBMIT, to_worker_codec().encode(SUBMIT))
    assert session.num_routed == 1
    session.replace_link(RANK)
    for word in (*last, None):
        links[0].words.put_nowait(word)
    heard = [await told.get()]
    assert session.num_routed == 0
    await session.close()
    return heard + [told.get_nowait() for _ in range(told.qsize())]


def test_the_end_of_a_request_is_told_though_its_rank_is_known_to_be_lost() -> None:
    assert asyncio.run(_told_after_its_loss([FINISHED])) == [FINISHED]


def test_what_has_no_end_is_handed_back_once() -> None:
    (heard,) = asyncio.run(_told_after_its_loss([]))
    assert isinstance(heard, HandBack)
