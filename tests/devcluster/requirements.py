"""Owns the question whether this machine can run a cell at all, and the sentence if it cannot."""

import os
import shutil
from pathlib import Path

from tests.devcluster.component_files import CNI_FOLDER
from tests.devcluster.folders import Folders
from tests.devcluster.isolation import HIDDEN

_PROGRAM_TO_PACKAGE = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "nft": "nftables",
    "mount": "mount",
    "openssl": "openssl",
    "runc": "runc",
    "conntrack": "conntrack",
}
_PLUGINS = ("ptp", "host-local", "loopback")


class RequirementError(RuntimeError):
    """The machine cannot run a cell; the message says what to do."""


def check_machine(folders: Folders) -> None:
    """Return if a cell can be started here; raises RequirementError otherwise."""
    if os.geteuid() != 0:
        raise RequirementError(
            "the local cluster needs root (it makes network and mount namespaces): run it as root, "
            "use a cluster that you have with `make demo CLUSTER=current`, or serve without "
            "Kubernetes with `mizzen serve MODEL`"
        )
    packages = {
        package for name, package in _PROGRAM_TO_PACKAGE.items() if shutil.which(name) is None
    }
    if not all(Path(CNI_FOLDER, plugin).exists() for plugin in _PLUGINS):
        packages.add("containernetworking-plugins")
    if packages:
        raise RequirementError(
            "programs are missing: run `make setup`, or apt-get install "
            + " ".join(sorted(packages))
        )
    for hidden in HIDDEN:
        if folders.root.resolve().is_relative_to(hidden):
            raise RequirementError(
                f"XDG_CACHE_HOME: {folders.root.parent} lies below {hidden}, which a cell does not "
                "see: take another folder"
            )
