"""Each rule is broken once on purpose, in a copy of the tree, to see its checker catch it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Give a copy of both packages and the tools' configuration."""
    for folder in ("operator", "worker"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def _run(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": f"{tree / 'operator'}:{tree / 'worker'}",
        "NO_COLOR": "1",
    }
    return subprocess.run(
        [str(TOOLS / command[0]), *command[1:]],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _append(tree: Path, module: str, text: str) -> None:
    path = tree / module
    with path.open("a") as file:
        file.write(f"\n{text}\n")


IMPORT_BREACHES = [
    (
        "operator/mizzen_operator/worker_contract.py",
        "import mizzen_worker.contracts.ids",
        "never import each other",
    ),
    (
        "worker/mizzen_worker/contracts/ids.py",
        "import mizzen_operator.worker_contract",
        "never import each other",
    ),
    ("worker/mizzen_worker/contracts/batch.py", "import mizzen_worker.ipc.channel", "goes one way"),
    ("worker/mizzen_worker/cache/__init__.py", "import mizzen_worker.http_api", "goes one way"),
    ("worker/mizzen_worker/kernels/__init__.py", "import mizzen_worker.attention", "goes one way"),
    (
        "operator/mizzen_operator/spec/__init__.py",
        "import mizzen_operator.cluster",
        "act afterwards",
    ),
    ("worker/mizzen_worker/http_api/__init__.py", "import torch", "never import torch"),
    ("worker/mizzen_worker/contracts/ids.py", "import torch", "pure"),
    ("worker/mizzen_worker/contracts/batch.py", "import time", "pure"),
    ("operator/mizzen_operator/spec/__init__.py", "import kopf", "pure"),
    ("operator/mizzen_operator/render/__init__.py", "import kubernetes", "pure"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("module", "line", "contract"), IMPORT_BREACHES)
def test_import_contract_catches(tree: Path, module: str, line: str, contract: str) -> None:
    _append(tree, module, line)
    result = _run(tree, "lint-imports", "--no-cache")
    assert result.returncode == 1
    broken = [row for row in result.stdout.splitlines() if row.endswith("BROKEN")]
    assert any(contract in row for row in broken), result.stdout


RUFF_BREACHES = {
    "T201": "print(1)",
    "TID251": "import os\nX = os.environ",
    "S307": "X = eval('1')",
    "BLE001": "try:\n    X = 1\nexcept Exception:\n    X = 2",
    "PLR0913": "def f(a, b, c, d, e, g, h):\n    return a, b, c, d, e, g, h",
    "PLC0415": "def f():\n    import json\n    return json",
    "FBT001": "def f(flag: bool):\n    return flag",
    "DTZ005": "import datetime\nX = datetime.datetime.now()",
    "FIX002": "# TODO: later",
    "ERA001": "# x = f(1)",
    "TID252": "from . import ids",
    "PGH004": "X = 1  # noqa",
    "SLF001": "import json\nX = json._default_encoder",
    "G004": "import logging\nX = 1\nlogging.getLogger().info(f'{X}')",
    "C901": "def f(a):\n"
    + "".join(f"    if a == {n}:\n        a += {n}\n" for n in range(11))
    + "    return a",
    "D100": "",
    "E501": "X = '" + "x" * 100 + "'",
}


@pytest.mark.parametrize("code", RUFF_BREACHES)
def test_ruff_catches(code: str, tmp_path: Path) -> None:
    folder = tmp_path / "worker" / "mizzen_worker"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    head = "" if code == "D100" else '"""Docstring."""\n\n'
    (folder / "breach.py").write_text(f"{head}{RUFF_BREACHES[code]}\n")
    result = _run(tmp_path, "ruff", "check", "--no-cache", "--output-format=concise", ".")
    assert result.returncode == 1
    assert f" {code} " in result.stdout


@pytest.mark.slow
def test_mypy_catches_a_node_passed_as_a_slot(tree: Path) -> None:
    _append(
        tree,
        "worker/mizzen_worker/contracts/ids.py",
        "def _take(slot: SlotIndex) -> SlotIndex:\n    return slot\n\n\n_take(NodeId(1))",
    )
    result = _run(
        tree, "mypy", "worker/mizzen_worker/contracts/ids.py", "--cache-dir", str(tree / "cache")
    )
    assert result.returncode == 1
    assert 'has incompatible type "NodeId"; expected "SlotIndex"' in result.stdout


@pytest.mark.slow
def test_deptry_catches_an_undeclared_dependency(tree: Path) -> None:
    _append(tree, "worker/mizzen_worker/contracts/ids.py", "import aiofiles_of_nobody")
    result = _run(tree, "deptry", "operator", "worker")
    assert result.returncode == 1
    assert "aiofiles_of_nobody" in result.stdout + result.stderr


@pytest.mark.slow
def test_vulture_catches_unreachable_code(tree: Path) -> None:
    _append(
        tree, "worker/mizzen_worker/contracts/ids.py", "def f() -> int:\n    return 1\n    return 2"
    )
    result = _run(tree, "vulture")
    assert result.returncode == 3
    assert "unreachable code" in result.stdout
