"""Owns reading a model folder's JSON files; owns no meaning of their keys."""

import json
from pathlib import Path
from typing import Any

from mizzen_worker.contracts.errors import ModelLoadError


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises ``ModelLoadError`` when the file holds none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{path}: cannot be read: {error}; download the model again"
        raise ModelLoadError(msg) from error
    if not isinstance(found, dict):
        msg = f"{path}: holds a {type(found).__name__}, a JSON object is needed"
        raise ModelLoadError(msg)
    return found
