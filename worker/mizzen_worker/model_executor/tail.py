"""Owns what may follow the head of the model in a step; does none of it. Pure."""

import enum


class Tail(enum.IntEnum):
    """What must follow the head of the model for a row, and for a step that of its neediest row.

    BEST: its best token is taken. DRAWN: a token is chosen by the slot's parameters. LOGITS: more
    happens to its logits than a captured step does. UNFIT: no captured step has room for the row.
    """

    BEST = 0
    DRAWN = 1
    LOGITS = 2
    UNFIT = 3
