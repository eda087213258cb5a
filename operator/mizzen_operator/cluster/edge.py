"""Owns putting together everything with an effect that a reconcile uses.

Does not own what is done with it (``reconcile``).
"""

from collections.abc import Callable
from dataclasses import dataclass

from mizzen_operator.cluster.apply import Applier
from mizzen_operator.cluster.client import ClusterClient
from mizzen_operator.cluster.curve_secret import CurveSecrets
from mizzen_operator.cluster.events import EventPoster
from mizzen_operator.cluster.prune import Pruner
from mizzen_operator.cluster.status_writer import StatusWriter, nothing_missing
from mizzen_operator.cluster.trial import TemplateTrials
from mizzen_operator.cluster.undone_edits import UndoneEdits
from mizzen_operator.spec.served import MissingFields
from mizzen_operator.store import ServiceUid, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Everything with an effect that a reconcile uses."""

    client: ClusterClient
    store: Store
    applier: Applier
    pruner: Pruner
    secrets: CurveSecrets
    trials: TemplateTrials
    status_writer: StatusWriter
    count_restart: Callable[[str], None]
    """Called with the cause of each restart of a group that was written."""

    def drop_memory(self, uid: ServiceUid) -> None:
        """The service is gone."""
        self.applier.drop_memory(uid)
        self.secrets.drop_memory(uid)
        self.trials.drop_memory(uid)
        self.status_writer.drop_memory(uid)


def edge_of(
    client: ClusterClient,
    store: Store,
    events: EventPoster,
    *,
    clock: Callable[[], float],
    count_restart: Callable[[str], None],
    missing: Callable[[], MissingFields] = nothing_missing,
) -> Edge:
    """The acting half over one client and one store."""
    return Edge(
        client=client,
        store=store,
        applier=Applier(client, store, UndoneEdits(events, clock=clock), clock=clock),
        pruner=Pruner(client, store, clock=clock),
        secrets=CurveSecrets(client, clock=clock),
        trials=TemplateTrials(client, clock=clock),
        status_writer=StatusWriter(client, store, events, clock=clock, missing=missing),
        count_restart=count_restart,
    )
