"""Owns the names by which live requests can be ended from outside; owns no requests.

A name is what a client was told (``X-Request-Id``, the id of the answer) or gave itself (``rid``);
several live requests may share one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from mizzen_worker.contracts.ids import RequestId


@dataclass(slots=True, kw_only=True)
class LiveRequests:
    """Names of the live requests of one front process."""

    _name_to_ids: dict[str, list[RequestId]] = field(default_factory=dict)

    def add(self, request_id: RequestId, names: Iterable[str]) -> None:
        """Note the names of a request that begins."""
        for name in names:
            self._name_to_ids.setdefault(name, []).append(request_id)

    def drop(self, request_id: RequestId, names: Iterable[str]) -> None:
        """Forget a request's names."""
        for name in names:
            left = self._name_to_ids.get(name)
            if left is not None and request_id in left:
                left.remove(request_id)
                if not left:
                    del self._name_to_ids[name]

    def ids_of(self, name: str | None) -> tuple[RequestId, ...]:
        """Give the live requests of a name; for None every one, once."""
        if name is not None:
            return tuple(self._name_to_ids.get(name, ()))
        return tuple(dict.fromkeys(one for ids in self._name_to_ids.values() for one in ids))
