"""Owns asking for the text of recorded tokens; owns no tokens (``RequestState`` does) and no text.

Invariant: at most one ``Feed`` of a request is unanswered, so a slow detokenizer gets fewer and
longer ones and nothing queues without bound.
"""

from mizzen_worker.contracts.text_messages import (
    MAX_FEED_PATTERN_TOKENS,
    MAX_FEED_TOKENS,
    CloseText,
    Feed,
    OpenText,
)
from mizzen_worker.tokenizer.request_state import RequestState
from mizzen_worker.tokenizer.text_channel import TextChannel


class TextFeed:
    """Feeds one text channel."""

    def __init__(self, channel: TextChannel) -> None:
        self._channel = channel

    def feed(self, state: RequestState) -> None:
        """Ask for the text of tokens not asked for yet, unless an answer is still due."""
        if state.is_feed_outstanding or state.stopped_by is not None:
            return
        finish = state.worker_finish
        num_tokens = state.num_output
        if num_tokens == state.num_fed and finish is None:
            return
        if not self._open(state):
            return
        end = min(num_tokens, state.num_fed + _most_tokens(state))
        is_last = finish is not None and end == num_tokens
        is_stop_token_hidden = finish is not None and finish.matched is not None
        is_sent = self._channel.send(
            Feed(
                request_id=state.request_id,
                start=state.num_fed,
                token_ids=state.output_ids(state.num_fed, end),
                is_last=is_last,
                trim_last=is_last and is_stop_token_hidden and not state.wanted.keep_stop,
            )
        )
        if is_sent:
            state.is_feed_outstanding = True
            state.num_fed = end

    def reopen(self, state: RequestState) -> None:
        """Begin again after the text was lost; what was delivered is left out."""
        state.is_text_open = False
        state.is_feed_outstanding = False
        state.num_fed = 0
        self.feed(state)

    def close(self, state: RequestState) -> None:
        """Let the text be forgotten."""
        if state.is_text_open:
            self._channel.send(CloseText(request_id=state.request_id))

    def _open(self, state: RequestState) -> bool:
        if not state.is_text_open:
            state.is_text_open = self._channel.send(
                OpenText(
                    request_id=state.request_id,
                    stop=state.wanted.stop,
                    stop_regex=state.wanted.stop_regex,
                    skip_special_tokens=state.wanted.skip_special_tokens,
                    keep_stop=state.wanted.keep_stop,
                    skip_chars=state.num_text_chars,
                    log_id=state.wanted.log_id,
                )
            )
        return state.is_text_open


def _most_tokens(state: RequestState) -> int:
    """Say how many tokens one ``Feed`` may have: other texts wait until it is answered."""
    return MAX_FEED_PATTERN_TOKENS if state.wanted.stop_regex else MAX_FEED_TOKENS
