"""A tokenizer's credit shared among ranks is conserved, whatever comes, goes or is lost."""

from hypothesis import given
from hypothesis import strategies as st

from mizzen_worker.data_parallel.credit import CreditShares

RANKS = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["grant", "forward", "return", "lose"]),
        st.sampled_from(RANKS),
        st.integers(1, 40),
    ),
    max_size=60,
)


@given(STEPS)
def test_ranks_never_send_more_than_the_tokenizer_takes(steps: list[tuple[str, str, int]]) -> None:
    window = 30
    shares = CreditShares(window, RANKS)
    at_rank = dict.fromkeys(RANKS, 0)
    unreturned = 0
    for verb, rank, amount in steps:
        if verb == "grant":
            at_rank[rank] += shares.grant(rank)
        elif verb == "forward":
            sent = min(amount, at_rank[rank])
            at_rank[rank] -= sent
            unreturned += sent
            if sent:
                shares.note_forwarded(rank, sent)
        elif verb == "return":
            returned = min(amount, unreturned)
            unreturned -= returned
            shares.note_returned(returned)
        else:
            at_rank[rank] = 0
            shares.note_lost(rank)
        assert sum(at_rank.values()) + unreturned <= window
    shares.note_returned(unreturned)
    for rank in RANKS:
        assert at_rank[rank] + shares.grant(rank) == window // len(RANKS)


def test_more_ranks_than_credit_still_get_some() -> None:
    shares = CreditShares(1, RANKS)
    assert [shares.grant(rank) for rank in RANKS] == [1, 1, 1]
