"""Owns what the end of one reconcile means: rest, look again, or retry; it is counted and logged.

Does not own the reconcile (``reconcile``) nor how long a retry waits (``workqueue``). Invariant:
every failure of a reconcile ends here in a retry, but for a lost Lease, which ends the process.
"""

import logging
import time
from collections.abc import Awaitable, Callable

from mizzen_operator.cluster.failures import LeadershipLostError
from mizzen_operator.errors import ClusterError, ConflictError, ThrottledError
from mizzen_operator.metrics import Metrics
from mizzen_operator.store import ServiceUid
from mizzen_operator.workqueue import WorkQueue

logger = logging.getLogger(__name__)

Reconcile = Callable[[ServiceUid], Awaitable[float | None]]
"""One pass; seconds after which to look again although nothing happens."""


class Attempts:
    """Tries services one at a time, for the workers of the queue."""

    def __init__(
        self, queue: WorkQueue[ServiceUid], reconcile: Reconcile, metrics: Metrics
    ) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._metrics = metrics

    async def attempt(self, uid: ServiceUid) -> None:
        """One reconcile; raises LeadershipLostError and nothing else."""
        started_s = time.monotonic()
        result = "ok"
        try:
            wait_s = await self._reconcile(uid)
        except LeadershipLostError:
            raise
        except ConflictError as error:
            result = "conflict"
            self._retry(uid, error, logging.INFO)
        except ClusterError as error:
            result = "cluster_error"
            self._retry(uid, error, logging.WARNING)
        except Exception as error:
            result = "bug"
            logger.exception("reconcile failed", extra={"service_uid": uid})
            self._retry(uid, error, logging.ERROR)
        else:
            self._queue.forget(uid)
            if wait_s is not None:
                self._queue.add_after(uid, wait_s)
        self._metrics.reconciles.labels(result).inc()
        self._metrics.reconcile_seconds.observe(time.monotonic() - started_s)

    def _retry(self, uid: ServiceUid, error: Exception, level: int) -> None:
        asked_s = error.retry_after_s if isinstance(error, ThrottledError) else None
        wait_s = error.look_again_s if isinstance(error, ClusterError) else None
        delay_s = self._queue.retry(uid, not_before_s=asked_s or 0.0, not_after_s=wait_s)
        logger.log(level, "again in %.1f s: %s", delay_s, error, extra={"service_uid": uid})
