"""The way to the detokenizer: one payload a turn, nothing lost while it is full, bounded."""

import asyncio

from mizzen_worker.contracts.ids import RequestId, TokenId
from mizzen_worker.contracts.text_messages import (
    MAX_BATCH_MESSAGES,
    MAX_BATCH_STOP_CHARS,
    MAX_BATCH_TOKENS,
    Feed,
    OpenText,
    TextChunk,
)
from mizzen_worker.ipc.codec import from_detokenizer_codec, to_detokenizer_codec
from mizzen_worker.ipc.link import LinkLostError
from mizzen_worker.tokenizer.text_channel import LinkTextChannel


class _Link:
    """Implements ``Link``; says what it was sent and takes nothing while it is full."""

    def __init__(self) -> None:
        self.batches: list[tuple] = []
        self.is_full = False
        self.arrived: asyncio.Queue[bytes | None] = asyncio.Queue()

    def send(self, payload: bytes) -> bool:
        if not self.is_full:
            self.batches.append(to_detokenizer_codec().decode(payload))
        return not self.is_full

    async def receive(self) -> list[bytes]:
        payload = await self.arrived.get()
        if payload is None:
            msg = "gone"
            raise LinkLostError(msg)
        return [payload]

    def close(self) -> None:
        pass


class _Listener:
    def __init__(self) -> None:
        self.texts: list = []
        self.num_lost = 0

    def on_text(self, message) -> None:
        self.texts.append(message)

    def on_texts_lost(self) -> None:
        self.num_lost += 1


def _feed(place: int, num_tokens: int = 1) -> Feed:
    return Feed(request_id=RequestId(str(place)), start=0, token_ids=(TokenId(7),) * num_tokens)


def _with_channel(scenario) -> None:
    async def run() -> None:
        link, listener = _Link(), _Listener()
        channel = LinkTextChannel("ipc:///x", open_link=lambda _address: link)
        assert not channel.send(_feed(0))
        task = asyncio.create_task(channel.run(listener))
        await asyncio.sleep(0)
        await scenario(channel, link, listener)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_what_is_sent_in_one_turn_leaves_together_and_in_order() -> None:
    async def scenario(channel: LinkTextChannel, link: _Link, _listener: _Listener) -> None:
        messages = [_feed(place) for place in range(3)]
        assert all(map(channel.send, messages))
        assert link.batches == []
        await asyncio.sleep(0)
        assert link.batches == [tuple(messages)]

    _with_channel(scenario)


def test_payloads_are_bounded_by_messages_and_by_tokens() -> None:
    async def scenario(channel: LinkTextChannel, link: _Link, _listener: _Listener) -> None:
        for place in range(MAX_BATCH_MESSAGES + 1):
            channel.send(_feed(place))
        for place in range(3):
            channel.send(_feed(place, MAX_BATCH_TOKENS // 2 + 1))
        for place in range(3):
            stop = ("x" * (MAX_BATCH_STOP_CHARS // 2),)
            channel.send(OpenText(request_id=RequestId(str(place)), stop=stop))
        await asyncio.sleep(0)
        sizes = [len(batch) for batch in link.batches]
        assert sizes == [MAX_BATCH_MESSAGES, 2, 1, 3, 1]

    _with_channel(scenario)


def test_what_a_full_link_does_not_take_waits_until_it_does() -> None:
    async def scenario(channel: LinkTextChannel, link: _Link, _listener: _Listener) -> None:
        link.is_full = True
        assert channel.send(_feed(0))
        await asyncio.sleep(0)
        assert channel.send(_feed(1))
        link.is_full = False
        async with asyncio.timeout(5):
            while not link.batches:  # noqa: ASYNC110 - the channel's own timer
                await asyncio.sleep(0.005)
        assert link.batches == [(_feed(0), _feed(1))]

    _with_channel(scenario)


def test_answers_reach_the_listener_and_a_loss_is_told_once() -> None:
    async def scenario(channel: LinkTextChannel, link: _Link, listener: _Listener) -> None:
        answers = tuple(
            TextChunk(request_id=RequestId(str(place)), text="a", num_tokens=1)
            for place in range(2)
        )
        link.arrived.put_nowait(from_detokenizer_codec().encode(answers))
        link.arrived.put_nowait(None)
        async with asyncio.timeout(5):
            while not listener.num_lost:  # noqa: ASYNC110 - told by a task
                await asyncio.sleep(0)
        assert listener.texts == list(answers)
        assert listener.num_lost == 1
        assert not channel.send(_feed(0))

    _with_channel(scenario)
