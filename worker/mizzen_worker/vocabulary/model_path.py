"""Owns what a model path stands for: which file of it, under which name; reads none."""

from pathlib import Path

from mizzen_worker.contracts.errors import ModelLoadError


def find_gguf(path: Path) -> Path | None:
    """Give the GGUF file of a model path: the file itself, or the only one of a folder.

    None for a folder without one, and for one with ``config.json``, which is of safetensors.
    """
    if path.is_file():
        return path
    files = [] if (path / "config.json").exists() else sorted(path.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        message = f"{path}: holds several GGUF files ({names}); give the path of one of them"
        raise ModelLoadError(message)
    return files[0] if files else None


def default_model_name(path: Path) -> str:
    """Name a model after its file or folder."""
    return path.stem if path.suffix == ".gguf" else path.resolve().name
