"""Prints a benchmark's rows as a table and writes them as JSON, with the machine's load beside."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = Mapping[str, str | int | float]


def publish(name: str, rows: Sequence[Row], path: Path) -> None:
    """Print ``rows`` (all with the same keys) and write them to ``path``."""
    columns = list(rows[0])
    cells = [[_text(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in (columns, *cells):
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    document = {
        "benchmark": name,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_1min": os.getloadavg()[0],
        "rows": [dict(row) for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"load {document['load_1min']:.1f} on {document['cpus']} cores; written to {path}")


def _text(value: str | float) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
