"""The list of pure modules in the worker's README is the one that is checked, and it is true."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _listed_in_readme() -> list[str]:
    text = (ROOT / "worker" / "mizzen_worker" / "README.md").read_text()
    section = text.split("## Pure modules", 1)[1]
    items = [line for line in section.splitlines() if line.startswith(("- ", "  `"))]
    return ["mizzen_worker." + name for name in re.findall(r"`([a-z_.]+)`", "\n".join(items))]


def _contract(name: str) -> list[str]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = config["tool"]["importlinter"]["contracts"]
    return next(entry["source_modules"] for entry in contracts if entry["name"] == name)


def _modules_of(name: str, folder: str) -> list[str]:
    path = ROOT / folder / name.replace(".", "/")
    if path.with_suffix(".py").exists():
        return [name]
    assert path.is_dir(), name
    return [
        ".".join(file.relative_to(ROOT / folder).with_suffix("").parts)
        for file in sorted(path.rglob("*.py"))
        if file.name != "__init__.py"
    ]


def test_readme_and_contract_hold_the_same_list() -> None:
    assert sorted(_listed_in_readme()) == sorted(_contract("Decisions of the worker are pure"))


def test_pure_modules_load_neither_torch_nor_a_client() -> None:
    """The import contract cannot see what a parent package's ``__init__`` would load."""
    worker = [
        module
        for name in _contract("Decisions of the worker are pure")
        for module in _modules_of(name, "worker")
    ]
    operator = [
        module
        for name in _contract("Decisions of the operator are pure")
        for module in _modules_of(name, "operator")
    ]
    program = (
        "import importlib, sys\n"
        f"for name in {worker + operator!r}: importlib.import_module(name)\n"
        "banned = {'torch', 'zmq', 'kopf', 'kubernetes', 'fastapi', 'starlette'}\n"
        "print(sorted(banned & set(sys.modules)))"
    )
    path = f"{ROOT / 'operator'}:{ROOT / 'worker'}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
