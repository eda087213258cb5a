"""What several ranks answer to one control is told once, and says what all of them said."""

from mizzen_worker.contracts.messages import Fact, Reply
from mizzen_worker.data_parallel.replies import AwaitedReplies


def _reply(control_id: int, *, is_ok: bool = True, **facts: Fact) -> Reply:
    return Reply(
        control_id=control_id, is_ok=is_ok, message="flushed" if is_ok else "no", facts=facts
    )


def test_numbers_add_up_and_words_are_told_where_equal() -> None:
    awaited = AwaitedReplies()
    assert awaited.expect(3, ["a", "b"]) is None
    assert awaited.take("a", _reply(3, freed=16, name="m", id="x", page_size=4, is_x=True)) is None
    assert awaited.take("c", _reply(3)) is None
    reply = awaited.take("b", _reply(3, freed=32, name="m", id="y", page_size=4, is_x=True))
    assert reply is not None
    assert reply.is_ok
    assert reply.facts["freed"] == 48
    assert (reply.facts["page_size"], reply.facts["rank1.page_size"]) == (4, 4)
    assert reply.facts["is_x"] is True
    assert reply.facts["name"] == "m"
    assert "id" not in reply.facts
    assert (reply.facts["rank0.id"], reply.facts["rank1.id"]) == ("x", "y")
    assert awaited.take("b", _reply(3)) is None


def test_a_lost_or_refusing_rank_makes_the_answer_a_refusal() -> None:
    awaited = AwaitedReplies()
    awaited.expect(1, ["a", "b"])
    awaited.expect(2, ["a"])
    awaited.take("b", _reply(1, is_ok=False))
    replies = {reply.control_id: reply for reply in awaited.note_lost("a")}
    assert not replies[1].is_ok
    assert "no" in replies[1].message
    assert "lost" in replies[1].message
    assert not replies[2].is_ok
    nobody = awaited.expect(4, [])
    assert nobody is not None
    assert not nobody.is_ok
