"""The shape of the tree: what no formatter, linter or type checker looks at."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "operator" / "mizzen_operator", ROOT / "worker" / "mizzen_worker")
MAX_LINES = 400
LONGER_FILES: dict[str, int] = {}
"""Files allowed to be longer, with the lines that they may not grow past. Only shrinks."""

FORBIDDEN_WORDS = re.compile(
    "|".join(
        (
            r"/wo" r"rk/",
            r"/ro" r"ot/",
            r"sub" r"agent",
            r"\bC" r"EO\b",
            r"py" r"pi\.org",
            r"files\.python" r"hosted",
            r"proxy\.go" r"lang",
            r"deb\.deb" r"ian\.org",
            r"registry\.np" r"mjs",
        )
    ),
    re.IGNORECASE,
)


def _tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


def _sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted(package.rglob("*.py"))]


def test_top_folders_do_not_shadow_the_standard_library() -> None:
    """With an ``__init__.py``, ``operator/`` would be imported instead of the standard module."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "worker" / "__init__.py").exists()
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_package_init_files_hold_no_logic() -> None:
    """A re-export would make pure modules load what their parent loads."""
    for init in (path for path in _sources() if path.name == "__init__.py"):
        text = init.read_text().strip()
        assert text == "" or re.fullmatch(r'__version__ = "[^"]+"', text), init


def test_files_stay_short_enough_to_have_one_owner() -> None:
    too_long = {}
    for path in _sources():
        name = str(path.relative_to(ROOT))
        lines = len(path.read_text().splitlines())
        if lines > LONGER_FILES.get(name, MAX_LINES):
            too_long[name] = lines
    assert not too_long


def test_exceptions_to_the_length_limit_only_shrink() -> None:
    for name, allowed in LONGER_FILES.items():
        lines = len((ROOT / name).read_text().splitlines())
        assert MAX_LINES < lines <= allowed, f"{name}: {lines} lines; lower or drop its exception"


@pytest.mark.parametrize("stem", ["utils", "common", "helpers", "misc", "queue", "types"])
def test_no_file_is_named_for_nothing(stem: str) -> None:
    assert not [path for path in _sources() if path.stem == stem]


def test_no_word_of_the_place_it_was_made_in() -> None:
    """Machine paths and package registry hosts have no place in the project."""
    found = []
    for path in _tracked_files():
        if path.suffix in {".sum", ".png"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if FORBIDDEN_WORDS.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found


def test_readme_table_names_existing_places() -> None:
    readme = (ROOT / "README.md").read_text()
    section = readme.split("## Where does it go", 1)[1].split("\n## ", 1)[0]
    missing = []
    for cell in re.findall(r"\| ([^|]+) \|$", section, re.MULTILINE):
        base = ROOT
        for name in re.findall(r"`([^`]+)`", cell):
            candidates = [ROOT / name, base / name, base.parent / name]
            hit = next((place for place in candidates if place.exists()), None)
            if hit is None:
                missing.append(name)
            elif hit.is_dir():
                base = hit
    assert not missing


def test_every_package_of_ours_has_a_row_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in ("scheduler", "cache", "memory", "models", "kernels", "tokenizer", "http_api"):
        assert f"mizzen_worker/{name}/" in readme


def test_version_is_the_same_on_both_sides() -> None:
    versions = {(package / "__init__.py").read_text() for package in PACKAGES}
    assert len(versions) == 1


def test_links_between_documents_lead_somewhere() -> None:
    dead = [
        f"{path.relative_to(ROOT)} -> {target}"
        for path in _tracked_files()
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert not dead


def test_documents_name_modules_that_exist() -> None:
    """A reading order or an ownership table outlives a renamed file unless something looks."""
    files = [f"/{path.relative_to(ROOT)}" for path in _tracked_files()]
    dead = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in _tracked_files()
        if path.suffix == ".md"
        for name in re.findall(r"(?<![\w*/<>.-])[\w/]+\.py\b", path.read_text())
        if not any(file.endswith(f"/{name}") for file in files)
    ]
    assert not dead
