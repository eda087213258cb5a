"""Owns text → token ids and checks of given ids; owns no chat templates."""

import asyncio
from collections.abc import Sequence

from tokenizers import Tokenizer

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.vocabulary.load import Vocabulary

_INLINE_CHARS = 4_096
"""Longer texts are encoded in a thread, where the library works without holding the loop up."""


class TextEncoder:
    """Encodes with one vocabulary. Immutable; safe in threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.tokenizer
        self._num_tokens = vocabulary.tokenizer.get_vocab_size(with_added_tokens=True)
        self._max_token_chars = _max_token_chars(vocabulary.tokenizer)

    def least_tokens(self, text: str) -> int:
        """Give a number of tokens that a text has at the very least, without encoding it."""
        return len(text) // self._max_token_chars if self._max_token_chars else 0

    async def encode(self, text: str, *, add_special_tokens: bool) -> tuple[TokenId, ...]:
        """Give the tokens of a text."""
        if len(text) <= _INLINE_CHARS:
            return self._encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self._encode, text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[TokenId], *, skip_special_tokens: bool) -> str:
        """Give the text of tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def check_ids(self, ids: list[int], *, field: str) -> tuple[TokenId, ...]:
        """Give ids a client brought; raises ``RequestError`` when one is no token."""
        for index, token_id in enumerate(ids):
            if not 0 <= token_id < self._num_tokens:
                msg = (
                    f"{field}[{index}] is {token_id}, which is no token of this model; ids go from "
                    f"0 to {self._num_tokens - 1}"
                )
                raise RequestError(
                    msg,
                    field=field,
                )
        return tuple(TokenId(token_id) for token_id in ids)

    def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[TokenId, ...]:
        encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return tuple(TokenId(token_id) for token_id in encoding.ids)


def _max_token_chars(tokenizer: Tokenizer) -> int:
    """Most characters that one token stands for; 0 where a vocabulary does not bound them.

    A normalizer may drop text, and an added token may swallow the spaces around it.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    if tokenizer.normalizer is not None or any(token.lstrip or token.rstrip for token in added):
        return 0
    return max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=0)
