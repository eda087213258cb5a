"""Owns which files of a Hugging Face folder hold its weights; opens none of them."""

from pathlib import Path

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.vocabulary.json_file import read_json_object

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, sorted; raises ``ModelLoadError`` when there are none."""
    index_path = folder / INDEX_FILE
    if index_path.exists():
        weight_map = read_json_object(index_path).get("weight_map")
        if not isinstance(weight_map, dict):
            message = f"{index_path}: weight_map is missing; download the model again"
            raise ModelLoadError(message)
        names = sorted({str(name) for name in weight_map.values()})
        if any(Path(name).name != name for name in names):
            message = f"{index_path}: weight_map points outside the folder; do not use this model"
            raise ModelLoadError(message)
        files = [folder / name for name in names]
    else:
        files = [folder / SINGLE_FILE]
    missing = [str(path) for path in files if not path.exists()]
    if missing:
        message = f"{', '.join(missing)}: missing; download the model again"
        raise ModelLoadError(message)
    return files
