"""Owns what several end-to-end tests of the operator start from."""

import pytest
from tests.devcluster.cluster import Cluster
from tests.e2e.definitions import wait_until_served
from tests.e2e.operator_process import install

from mizzen_operator.store import ROLE_SCALER, SERVICE_KIND


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    """The chart without a running operator: definition, account, rights."""
    install(cluster, {"replicas": 0})
    kinds = [f"{kind.plural}.serving.mizzen.dev" for kind in (SERVICE_KIND, ROLE_SCALER)]
    wait_until_served(cluster, *kinds)
    return cluster
