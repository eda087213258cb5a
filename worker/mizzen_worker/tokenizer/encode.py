"""Owns text → token ids and checks of given ids; owns no chat templates."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from tokenizers import Tokenizer

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.vocabulary.load import Vocabulary

_Result = TypeVar("_Result")

_INLINE_CHARS = 1_024
_INLINE_TOKENS = 4_096
"""What is longer is done in a thread, by the library's calls for several texts: only those let the
event loop go on meanwhile."""
_HUGE = 256 * 1024
"""What has more characters or tokens waits its turn: meanwhile the library takes about 200 bytes
for each."""


class TextEncoder:
    """Encodes with one vocabulary; of huge inputs one at a time. Safe in threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.tokenizer
        self._num_tokens = vocabulary.tokenizer.get_vocab_size(with_added_tokens=True)
        self._max_token_chars = _max_token_chars(vocabulary.tokenizer)
        self._for_huge = ThreadPoolExecutor(max_workers=1, thread_name_prefix="huge-text")

    def least_tokens(self, text: str) -> int:
        """Give a number of tokens that a text has at the very least, without encoding it."""
        return len(text) // self._max_token_chars if self._max_token_chars else 0

    async def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool
    ) -> list[tuple[TokenId, ...]]:
        """Give the tokens of each text."""
        num_chars = sum(map(len, texts))
        if num_chars <= _INLINE_CHARS:
            return self._encode(texts, add_special_tokens=add_special_tokens)
        return await self._in_thread(
            lambda: self._encode(texts, add_special_tokens=add_special_tokens),
            is_huge=num_chars > _HUGE,
        )

    async def decode(
        self, id_lists: Sequence[Sequence[TokenId]], *, skip_special_tokens: bool
    ) -> list[str]:
        """Give the text of each list of tokens."""
        num_tokens = sum(map(len, id_lists))
        if num_tokens <= _INLINE_TOKENS:
            return self._decode(id_lists, skip_special_tokens=skip_special_tokens)
        return await self._in_thread(
            lambda: self._decode(id_lists, skip_special_tokens=skip_special_tokens),
            is_huge=num_tokens > _HUGE,
        )

    def check_ids(self, ids: list[int], *, field: str) -> tuple[TokenId, ...]:
        """Give ids a client brought; raises ``RequestError`` when one is no token."""
        if ids and not 0 <= min(ids) <= max(ids) < self._num_tokens:
            index, token_id = next(
                (place, one) for place, one in enumerate(ids) if not 0 <= one < self._num_tokens
            )
            msg = (
                f"{field}[{index}] is {token_id}, which is no token of this model; ids go from "
                f"0 to {self._num_tokens - 1}"
            )
            raise RequestError(msg, field=field)
        return cast("tuple[TokenId, ...]", tuple(ids))

    async def _in_thread(self, work: Callable[[], _Result], *, is_huge: bool) -> _Result:
        executor = self._for_huge if is_huge else None
        return await asyncio.get_running_loop().run_in_executor(executor, work)

    def _encode(
        self, texts: Sequence[str], *, add_special_tokens: bool
    ) -> list[tuple[TokenId, ...]]:
        found = self._tokenizer.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return [cast("tuple[TokenId, ...]", tuple(encoding.ids)) for encoding in found]

    def _decode(
        self, id_lists: Sequence[Sequence[TokenId]], *, skip_special_tokens: bool
    ) -> list[str]:
        return self._tokenizer.decode_batch(
            [list(ids) for ids in id_lists], skip_special_tokens=skip_special_tokens
        )


def _max_token_chars(tokenizer: Tokenizer) -> int:
    """Most characters that one token stands for; 0 where a vocabulary does not bound them.

    A normalizer may drop text, and an added token may swallow the spaces around it.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    if tokenizer.normalizer is not None or any(token.lstrip or token.rstrip for token in added):
        return 0
    return max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=0)
