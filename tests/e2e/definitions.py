"""Owns when definitions in the cluster are served, and having those of other projects for a while.

Not here: which files there are (tests/devcluster/published.py), nor controllers: none runs.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from tests.devcluster.cluster import Cluster
from tests.devcluster.folders import user_folders
from tests.devcluster.published import PublishedFile, published_text
from tests.e2e.waiting import wait_for


@contextmanager
def published_definitions(cluster: Cluster, *files: PublishedFile) -> Iterator[None]:
    """The kinds exist and are served meanwhile."""
    texts = [published_text(user_folders(), file) for file in files]
    names = [yaml.safe_load(text)["metadata"]["name"] for text in texts]
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin="\n---\n".join(texts))
    try:
        wait_until_served(cluster, *names)
        yield
    finally:
        cluster.kubectl("delete", "crd", *names)


def wait_until_served(cluster: Cluster, *names: str) -> None:
    """Until each definition (``things.example.com``) is established and its kind can be listed.

    ``kubectl wait`` fails on one that has no conditions yet. Established comes a moment before
    storage, for which kubectl waits; the operator's calls fail and are repeated, which a test may
    not expect.
    """

    def is_established() -> bool:
        found = json.loads(cluster.kubectl("get", "crd", *names, "-o", "json"))
        items = found.get("items", [found])
        return all(_established(item).get("status") == "True" for item in items)

    wait_for(f"{', '.join(names)} are established", is_established)
    cluster.kubectl("get", ",".join(names), "--all-namespaces")


def _established(definition: dict[str, Any]) -> dict[str, Any]:
    """That condition of a definition, empty while it has none."""
    found = (definition.get("status") or {}).get("conditions") or ()
    return next((item for item in found if item["type"] == "Established"), {})
