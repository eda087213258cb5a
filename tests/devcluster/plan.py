"""Owns what a cell is told when it starts: a frozen value, written as one JSON file."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.devcluster.components import Programs
from tests.devcluster.config import NodeConfig
from tests.devcluster.folders import CellFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """Everything the cell's first process needs to know."""

    name: str
    folder: CellFolder
    programs: Programs
    nodes: tuple[NodeConfig, ...]
    stores: tuple[Path, ...]
    pause_archive: Path
    node_grace_seconds: int

    def write(self, path: Path) -> None:
        """Write the plan for the cell's first process."""
        document = {
            "name": self.name,
            "folder": str(self.folder.path),
            "programs": str(self.programs.folder),
            "nodes": [asdict(node) for node in self.nodes],
            "stores": [str(store) for store in self.stores],
            "pause_archive": str(self.pause_archive),
            "node_grace_seconds": self.node_grace_seconds,
        }
        path.write_text(json.dumps(document, indent=1))


def read_plan(path: Path) -> CellPlan:
    """Read a plan back."""
    document = json.loads(path.read_text())
    return CellPlan(
        name=document["name"],
        folder=CellFolder(path=Path(document["folder"])),
        programs=Programs(folder=Path(document["programs"])),
        nodes=tuple(NodeConfig(**node) for node in document["nodes"]),
        stores=tuple(Path(store) for store in document["stores"]),
        pause_archive=Path(document["pause_archive"]),
        node_grace_seconds=document["node_grace_seconds"],
    )
