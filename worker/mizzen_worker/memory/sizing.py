"""Owns the arithmetic from tokens to pages; allocates nothing."""


def pages_for_tokens(num_tokens: int, *, page_size: int) -> int:
    """Pages that hold ``num_tokens`` positions."""
    return -(-num_tokens // page_size)
