"""Owns looking, now and then, at which fields of our definitions the cluster serves.

Does not own the comparison (``spec/served``) nor what is left out of a status (`status_writer`).
State: what was missing at the last look; nothing until the first one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from mizzen_operator.cluster.reader import SERVED_DEFINITIONS
from mizzen_operator.cluster.request import Request
from mizzen_operator.errors import ClusterError
from mizzen_operator.spec.served import MissingFields, missing_fields, texts_of

logger = logging.getLogger(__name__)

MAX_NAMED = 20


class OpenApi(Protocol):
    """What answers a request with JSON; may raise a `ClusterError`."""

    async def call(self, request: Request) -> dict[str, Any]:
        """The answer."""


class ServedDefinitions:
    """What the cluster lacks of the definitions of this release."""

    def __init__(self, client: OpenApi, *, on_change: Callable[[], None]) -> None:
        self._client = client
        self._on_change = on_change
        self.missing: MissingFields = {}

    async def look(self) -> None:
        """Compare once; an API server that does not tell leaves things as they were."""
        try:
            missing = missing_fields(await self._client.call(SERVED_DEFINITIONS))
        except ClusterError as error:
            logger.warning("cannot compare the definitions with those of this release: %s", error)
            return
        if missing == self.missing:
            return
        self.missing = missing
        self._on_change()
        if missing:
            logger.warning("%s", sentence_of(missing))
        else:
            logger.info("the definitions are those of this release")

    async def keep_looking(
        self,
        *,
        every_s: float,
        retry_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Look again for ever, sooner while something is missing: it may be applied at any time."""
        while True:
            await sleep(retry_s if self.missing else every_s)
            await self.look()


def sentence_of(missing: MissingFields) -> str:
    """What is missing and what to do, in one sentence."""
    texts = texts_of(missing)
    more = f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return (
        f"the cluster's definitions are older than this release, they lack "
        f"{', '.join(texts[:MAX_NAMED])}{more}: what is written there is lost; apply the files in "
        "crds/ of this release, or helm upgrade with installCrds=true"
    )
