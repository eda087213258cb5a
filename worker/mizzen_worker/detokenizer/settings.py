"""Owns the configuration of a detokenizer process, apart from its wiring."""

import msgspec

from mizzen_worker.observability.process_log import ProcessLog


class DetokenizerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the vocabulary is and where to bind."""

    model: str
    skip_tokenizer: bool
    address: str
    log: ProcessLog
