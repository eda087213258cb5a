"""Credit: what is held is coalesced, ordered and complete."""

from hypothesis import given
from hypothesis import strategies as st

from mizzen_worker.contracts.ids import Generation, RequestId, TokenId
from mizzen_worker.contracts.messages import (
    Finished,
    Heartbeat,
    PromptLogprobs,
    TokenEvent,
    TokenEvents,
    TokenLogprob,
    ToTokenizer,
)
from mizzen_worker.contracts.request import FinishKind, FinishReason, Usage
from mizzen_worker.ipc.outbox import Outbox


def _event(name: str, start: int, *ids: int, generation: int = 0) -> TokenEvent:
    return TokenEvent(RequestId(name), Generation(generation), start, tuple(map(TokenId, ids)))


def _finished(name: str, generation: int = 0) -> Finished:
    return Finished(
        request_id=RequestId(name),
        generation=Generation(generation),
        reason=FinishReason(kind=FinishKind.LENGTH),
        usage=Usage(prompt_tokens=1, completion_tokens=1, cached_tokens=0),
    )


def _taken(outbox: Outbox) -> list[ToTokenizer]:
    taken = list(outbox.ready)
    outbox.ready.clear()
    return taken


def test_credit_is_used_up_then_events_are_held_and_coalesced() -> None:
    outbox = Outbox(credit=1)
    outbox.put(TokenEvents(events=(_event("a", 0, 5),)))
    outbox.put(TokenEvents(events=(_event("a", 1, 6),)))
    outbox.put(TokenEvents(events=(_event("a", 2, 7), _event("b", 0, 9))))
    outbox.put(_finished("a"))
    assert _taken(outbox) == [TokenEvents(events=(_event("a", 0, 5),))]
    assert outbox.num_held == 2
    outbox.grant(1)
    assert _taken(outbox) == [TokenEvents(events=(_event("a", 1, 6, 7),)), _finished("a")]
    outbox.grant(5)
    assert _taken(outbox) == [TokenEvents(events=(_event("b", 0, 9),))]
    assert outbox.credit == 4


def test_scores_are_held_with_their_tokens_and_prompt_scores_are_not() -> None:
    outbox = Outbox()

    def scored(start: int) -> TokenEvent:
        return TokenEvent(
            RequestId("a"), Generation(0), start, (TokenId(start),), (TokenLogprob(-start),)
        )

    prompt = PromptLogprobs(RequestId("a"), Generation(0), 1, (TokenLogprob(-9.0),))
    outbox.put(TokenEvents(events=(scored(0),), prompt_logprobs=(prompt,)))
    outbox.put(TokenEvents(events=(scored(1),)))
    assert _taken(outbox) == [TokenEvents(events=(), prompt_logprobs=(prompt,))]
    outbox.grant(1)
    both = TokenEvent(
        RequestId("a"),
        Generation(0),
        0,
        (TokenId(0), TokenId(1)),
        (TokenLogprob(0), TokenLogprob(-1)),
    )
    assert _taken(outbox) == [TokenEvents(events=(both,))]


def test_messages_without_tokens_do_not_wait() -> None:
    outbox = Outbox()
    outbox.put(TokenEvents(events=(_event("a", 0, 5),)))
    outbox.put(Heartbeat())
    outbox.put(_finished("b"))
    assert _taken(outbox) == [Heartbeat(), _finished("b")]


def test_newer_generation_replaces_what_is_held() -> None:
    outbox = Outbox()
    outbox.put(TokenEvents(events=(_event("a", 0, 5),)))
    outbox.put(TokenEvents(events=(_event("a", 3, 8, generation=1),)))
    outbox.put(TokenEvents(events=(_event("a", 1, 6),)))
    outbox.grant(9)
    assert _taken(outbox) == [TokenEvents(events=(_event("a", 3, 8, generation=1),))]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=60))
def test_every_token_arrives_once_in_order_and_before_its_end(steps: list[tuple[str, int]]) -> None:
    outbox = Outbox()
    sent = dict.fromkeys("abc", 0)
    for name, credit in steps:
        outbox.put(TokenEvents(events=(_event(name, sent[name], sent[name]),)))
        sent[name] += 1
        outbox.grant(credit)
    for name in sent:
        outbox.put(_finished(name))
    outbox.grant(1000)
    got: dict[str, list[int]] = {name: [] for name in sent}
    ended: set[str] = set()
    for message in _taken(outbox):
        if isinstance(message, Finished):
            ended.add(message.request_id)
            continue
        assert isinstance(message, TokenEvents)
        for event in message.events:
            assert event.request_id not in ended
            assert event.start == len(got[event.request_id])
            got[event.request_id].extend(event.token_ids)
    assert got == {name: list(range(count)) for name, count in sent.items()}
    assert ended == set("abc")
    assert outbox.num_held == 0
