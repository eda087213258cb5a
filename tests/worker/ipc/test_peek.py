"""Looking at bytes tells what decoding them would."""

import pytest

from mizzen_worker.contracts.ids import Generation, RequestId, TokenId
from mizzen_worker.contracts.messages import Heartbeat, PromptLogprobs, TokenEvent, TokenEvents
from mizzen_worker.ipc.codec import to_tokenizer_codec
from mizzen_worker.ipc.peek import num_token_events


@pytest.mark.parametrize("count", [0, 1, 15, 16, 300, 70_000])
def test_number_of_events_is_read_off(count: int) -> None:
    event = TokenEvent(RequestId("r"), Generation(0), 0, (TokenId(1),))
    scores = PromptLogprobs(RequestId("r"), Generation(0), 0, ())
    message = TokenEvents(events=(event,) * count, prompt_logprobs=(scores,))
    assert num_token_events(to_tokenizer_codec().encode(message)) == count


@pytest.mark.parametrize("payload", [b"", b"\x83", to_tokenizer_codec().encode(Heartbeat())])
def test_other_bytes_are_not_taken_for_events(payload: bytes) -> None:
    assert num_token_events(payload) is None
    whole = to_tokenizer_codec().encode(TokenEvents(events=()))
    for length in range(len(whole)):
        assert num_token_events(whole[:length]) in {None, 0}
