"""Owns what the three kinds of sources have in common; owns no protocol."""

from typing import Protocol

from mizzen_worker.fetch.http_client import HttpRequest
from mizzen_worker.fetch.listing import Listing, RemoteFile


class Backend(Protocol):
    """One source. Thread safe."""

    def list_files(self) -> Listing:
        """All that is to be fetched at this moment; raises ``FetchError``."""

    def request(self, file: RemoteFile) -> HttpRequest:
        """The request for a file of a listing, whole; made anew for each attempt.

        Raises ``FetchError`` where credentials are refused.
        """
