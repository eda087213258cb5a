"""Arithmetic of pages."""

import pytest

from mizzen_worker.memory.sizing import pages_for_tokens


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_pages_for_tokens(tokens: int, pages: int) -> None:
    assert pages_for_tokens(tokens, page_size=16) == pages
