"""What our images contain, and that they run as restricted pods: built for real, run for real."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.devcluster.images import TARGETS, user_builder
from tests.devcluster.images_store import Image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

COMPILERS = re.compile(r"(^|/)(cc|c\+\+|gcc|g\+\+|clang|ld|make|cc1|cc1plus)(-\d+)?$")
HEADERS = re.compile(r"/include/python3\.\d+/Python\.h$")
CACHES = re.compile(r"(^|/)(\.cache|pip-cache|uv-cache)/|(^|/)var/(cache/uv|lib/apt/lists)/.+")
INSTALLERS = re.compile(r"(^|/)bin/(uv|pip|pip3)$|/site-packages/(pip|uv)/")
SECRETS = re.compile(
    r"(^|/)(\.env|\.netrc|\.pypirc|\.git-credentials|id_[a-z0-9]+|\.docker/config\.json|kubeconfig)$"
    r"|(^|/)(\.git|\.ssh|\.aws)/|(^|/)(pip|uv)\.(conf|toml)$"
)


@pytest.fixture(scope="module")
def images() -> dict[str, Image]:
    """Build what is not built yet and return every image by target."""
    builder = user_builder()
    names = builder.build_all(lambda _: None)
    return {target: builder.read(name) for target, name in names.items()}


def files_of(image: Image) -> dict[str, Path]:
    """Return every file of an image by its path inside, upper layers last."""
    found: dict[str, Path] = {}
    for layer in image.layers:
        for path in _walk(layer.folder):
            found[str(path.relative_to(layer.folder))] = path
    return found


def _walk(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        for name in names:
            yield Path(root, name)


def packages_of(files: dict[str, Path]) -> set[str]:
    """Return the names of all installed distributions."""
    matches = (re.search(r"/site-packages/([^/]+)-[^-/]+\.dist-info/METADATA$", f) for f in files)
    return {match[1].lower().replace("_", "-") for match in matches if match}


ALL = [target.name for target in TARGETS]


@pytest.mark.parametrize("target", ALL)
def test_nothing_is_in_an_image_that_only_builds_need(
    images: dict[str, Image], target: str
) -> None:
    files = files_of(images[target])
    for what in (COMPILERS, HEADERS, CACHES, INSTALLERS):
        assert not [file for file in files if what.search(file)], what.pattern


@pytest.mark.parametrize("target", ALL)
def test_no_secret_is_in_an_image(images: dict[str, Image], target: str) -> None:
    files = files_of(images[target])
    assert not [file for file in files if SECRETS.search(file)]
    keys = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\n[A-Za-z0-9+/=\n]{64,}")
    for name, path in files.items():
        if "/mizzen_" in name and path.is_file() and not path.is_symlink():
            assert not keys.search(path.read_bytes()), name
    environment = json.loads(images[target].config)["config"]["Env"]
    assert {line.split("=")[0] for line in environment} <= {
        *("PATH", "HOME", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"),
    }


def test_front_images_have_neither_torch_nor_transformers(images: dict[str, Image]) -> None:
    for target in ("operator", "frontend"):
        packages = packages_of(files_of(images[target]))
        assert not packages & {"torch", "triton", "transformers", "safetensors"}
        assert not [package for package in packages if package.startswith("nvidia-")]


def test_each_image_has_what_its_processes_import(images: dict[str, Image]) -> None:
    wanted = {
        "operator": {"mizzen", "kopf", "kubernetes", "pydantic"},
        "frontend": {"mizzen", "fastapi", "uvicorn", "tokenizers", "pyzmq"},
        "worker": {"mizzen", "torch", "triton", "transformers", "fastapi", "tokenizers", "pyzmq"},
    }
    for target, packages in wanted.items():
        assert packages <= packages_of(files_of(images[target])), target


@pytest.mark.parametrize("target", ALL)
def test_no_development_tool_is_in_an_image(images: dict[str, Image], target: str) -> None:
    packages = packages_of(files_of(images[target]))
    assert not packages & {"pytest", "ruff", "mypy", "hypothesis", "openai", "helm-python-sdk"}


@pytest.mark.parametrize("target", ALL)
def test_versions_in_an_image_are_those_of_the_lock(images: dict[str, Image], target: str) -> None:
    lock = (Path(__file__).parents[2] / "requirements.lock").read_text()
    files = files_of(images[target])
    lists = [path for name, path in files.items() if name.startswith("opt/requirements/")]
    assert lists
    for line in "".join(path.read_text() for path in lists).splitlines():
        assert line in lock


@pytest.mark.parametrize("target", ALL)
def test_an_image_runs_our_command_as_an_unprivileged_user(
    images: dict[str, Image], target: str
) -> None:
    config = json.loads(images[target].config)["config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["mizzen"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.title"] == f"Mizzen {target}"


def test_the_code_is_a_thin_layer_of_its_own(
    images: dict[str, Image], record_property: Callable[[str, object], None]
) -> None:
    for target, image in images.items():
        sizes = [sum(f.lstat().st_size for f in _walk(layer.folder)) for layer in image.layers]
        megabytes = [round(size / 1e6, 1) for size in sizes]
        record_property(f"{target}_layers_mb", str(megabytes))
        print(f"{target}: {sum(megabytes):.0f} MB in layers of {megabytes} MB")
        assert sizes[-1] < 20e6
        code = [path for path in _walk(image.layers[-1].folder) if "/mizzen_worker/" in str(path)]
        assert code
        below = [p for layer in image.layers[:-1] for p in _walk(layer.folder)]
        assert not [path for path in below if "/mizzen_worker/" in str(path)]


def test_the_worker_is_the_frontend_and_more(images: dict[str, Image]) -> None:
    """So a node that has one gets the other for the difference."""
    frontend = [layer.diff_id for layer in images["frontend"].layers[:-1]]
    worker = [layer.diff_id for layer in images["worker"].layers]
    assert worker[: len(frontend)] == frontend
