"""Byte arithmetic of the KV pool."""

import pytest

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.memory.sizing import KvShape, pages_for_tokens, pages_in_budget, pool_bytes

SHAPE = KvShape(num_layers=30, num_kv_heads=3, head_dim=64, element_bytes=2)


def test_a_budget_is_used_up_to_less_than_a_page() -> None:
    assert SHAPE.bytes_per_token == 2 * 30 * 3 * 64 * 2
    num_pages = pages_in_budget(SHAPE, budget_bytes=10**9, page_size=16)
    assert pool_bytes(SHAPE, num_pages=num_pages, page_size=16) <= 10**9
    assert pool_bytes(SHAPE, num_pages=num_pages + 1, page_size=16) > 10**9


def test_a_budget_without_a_usable_page_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"give at least 737280 bytes"):
        pages_in_budget(SHAPE, budget_bytes=400_000, page_size=16)


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_pages_for_tokens(tokens: int, pages: int) -> None:
    assert pages_for_tokens(tokens, page_size=16) == pages
