"""Owns where the operator finds the API server and by which credentials it may talk to it.

Does not own any connection.
"""

from kubernetes import config as kubernetes_config
from kubernetes.client import Configuration

from mizzen_operator.settings import Settings


def load_configuration(settings: Settings) -> Configuration:
    """Address and credentials of the API server, from a kubeconfig or from the pod's account."""
    configuration = Configuration()
    if settings.kubeconfig:
        kubernetes_config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=settings.kubeconfig,
            client_configuration=configuration,
            persist_config=False,
        )
    else:
        kubernetes_config.load_incluster_config(  # type: ignore[no-untyped-call]
            client_configuration=configuration
        )
    return configuration
