"""Owns how a benchmark's rows are shown and kept; measures nothing."""

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from mizzen_worker.bench.measures import Row


def table(rows: Sequence[Row]) -> str:
    """Columns right-aligned; all rows have the same keys."""
    columns = list(rows[0])
    cells = [[_text(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = (columns, *cells)
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in lines
    )


def facts_of_machine(device: str) -> Mapping[str, str]:
    """What a reader must know to compare numbers."""
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device,
    }
    if device.startswith("cuda"):
        facts["gpu"] = torch.cuda.get_device_name(torch.device(device))
        facts["cuda"] = torch.version.cuda or ""
    return facts


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write one run's numbers; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_finite(document), indent=2, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _finite(found: object) -> object:
    """JSON has no infinity and no NaN: what is not a number there is null."""
    if isinstance(found, Mapping):
        return {key: _finite(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_finite(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def _text(value: str | float) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return "-"
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)
