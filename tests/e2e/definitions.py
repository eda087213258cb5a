"""Owns having kinds of other projects in the cluster for a while, as these published them.

Not here: which files there are (tests/devcluster/published.py), nor controllers: none runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from tests.devcluster.cluster import Cluster
from tests.devcluster.folders import user_folders
from tests.devcluster.published import PublishedFile, published_text


@contextmanager
def published_definitions(cluster: Cluster, *files: PublishedFile) -> Iterator[None]:
    """The kinds exist and are served meanwhile."""
    texts = [published_text(user_folders(), file) for file in files]
    found: list[dict[str, Any]] = [yaml.safe_load(text) for text in texts]
    names = [f"crd/{definition['metadata']['name']}" for definition in found]
    kinds = ",".join(definition["metadata"]["name"] for definition in found)
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin="\n---\n".join(texts))
    try:
        cluster.kubectl("wait", "--for=condition=Established", *names)
        cluster.kubectl("get", kinds, "--all-namespaces")
        yield
    finally:
        cluster.kubectl("delete", *names)
