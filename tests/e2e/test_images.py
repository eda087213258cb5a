"""What our images contain, and that they run as restricted pods: built for real, run for real."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.devcluster.cluster import Cluster
from tests.devcluster.images import TARGETS, user_builder
from tests.devcluster.images_load import chain_ids, load, load_everywhere, runtimes
from tests.devcluster.images_store import Image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

COMPILERS = re.compile(r"(^|/)(cc|c\+\+|gcc|g\+\+|clang|ld|make|cc1|cc1plus)(-\d+)?$")
BUILD_TOOLS = re.compile(r"(^|/)(c\+\+|g\+\+|clang|make|cc1plus)(-\d+)?$")
HEADERS = re.compile(r"/include/python3\.\d+/Python\.h$")
CACHES = re.compile(
    r"(^|/)(\.cache|pip-cache|uv-cache)/"
    r"|(^|/)var/(cache/uv/.+|cache/apt/.+\.(bin|deb)|lib/apt/lists/.+_.+)"
)
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
    # Triton compiles C on the worker; of nothing else is more there than in the other images.
    unwanted = (BUILD_TOOLS,) if target == "worker" else (COMPILERS, HEADERS)
    for what in (*unwanted, CACHES, INSTALLERS):
        assert not [file for file in files if what.search(file)], what.pattern


def test_the_worker_has_what_triton_compiles_with(images: dict[str, Image]) -> None:
    files = files_of(images["worker"])
    for needed in (r"(^|/)bin/gcc$", r"/cc1$", r"(^|/)bin/ld$", r"/include/stdio\.h$"):
        assert any(re.search(needed, file) for file in files), needed
    assert any(HEADERS.search(file) for file in files)


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


def test_the_code_is_a_thin_layer_of_its_own(images: dict[str, Image]) -> None:
    for target, image in images.items():
        sizes = [sum(f.lstat().st_size for f in _walk(layer.folder)) for layer in image.layers]
        megabytes = [round(size / 1e6, 1) for size in sizes]
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


PROBE = """
import importlib.util, os, pathlib, sys
assert os.getuid() == 65532 and os.getgid() == 65532, (os.getuid(), os.getgid())
for folder in ("/", "/opt/mizzen", "/tmp"):
    try:
        pathlib.Path(folder, "written").write_text("x")
    except OSError:
        continue
    sys.exit(f"{folder} can be written to")
for name in sys.argv[1].split(","):
    importlib.import_module(name)
print("found", *(name for name in ("torch", "transformers") if importlib.util.find_spec(name)))
"""
IMPORTS = {
    "operator": "mizzen_operator.main",
    "frontend": "mizzen_worker.http_api.app",
    "worker": "torch,mizzen_worker.model_executor.model_runner",
}


def _pod(target: str, image: str) -> str:
    container = {
        "name": "probe",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", PROBE, IMPORTS[target]],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"restartPolicy": "Never", "securityContext": security, "containers": [container]}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": target}, "spec": spec}
    )


def _phase(cluster: Cluster, namespace: str, pod: str) -> str:
    return cluster.kubectl("get", "pod", pod, "-n", namespace, "-o", "jsonpath={.status.phase}")


def test_images_run_as_restricted_pods_with_a_read_only_root(
    cluster: Cluster, namespace: str, images: dict[str, Image]
) -> None:
    load_everywhere(cluster, [image.name for image in images.values()], lambda _: None)
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", namespace, restricted)
    for target, image in images.items():
        cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=_pod(target, image.name))
    for target in images:
        deadline = time.monotonic() + 120
        while _phase(cluster, namespace, target) not in ("Succeeded", "Failed"):
            assert time.monotonic() < deadline, cluster.kubectl("describe", "pod", "-n", namespace)
            time.sleep(0.5)
    logs = {target: cluster.kubectl("logs", target, "-n", namespace) for target in images}
    assert {_phase(cluster, namespace, target) for target in images} == {"Succeeded"}, logs
    assert logs["operator"].strip() == logs["frontend"].strip() == "found"
    assert logs["worker"].strip() == "found torch transformers"


def test_an_image_costs_a_node_no_disk(cluster: Cluster, images: dict[str, Image]) -> None:
    """Every file of every layer on every node is the image store's own, not a copy of it."""
    load_everywhere(cluster, [image.name for image in images.values()], lambda _: None)
    for runtime in runtimes(cluster):
        snapshots = runtime.store / "io.containerd.snapshotter.v1.overlayfs" / "snapshots"
        of_the_node = {path.lstat().st_ino for path in _walk(snapshots)}
        for image in images.values():
            for layer in image.layers:
                for path in _walk(layer.folder):
                    assert path.lstat().st_ino in of_the_node, path


def test_loading_again_changes_nothing(cluster: Cluster, images: dict[str, Image]) -> None:
    for runtime in runtimes(cluster):
        load(images["frontend"], runtime)
        again = load(images["frontend"], runtime)
        assert again.new_layers == 0
        assert again.known_layers == len(images["frontend"].layers)


def test_a_load_that_was_killed_is_finished_by_the_next(
    cluster: Cluster, images: dict[str, Image]
) -> None:
    runtime, image = runtimes(cluster)[0], images["operator"]
    command = runtime.ctr("snapshots", "prepare", "mizzen-load-killed")
    subprocess.run(command, check=True, capture_output=True)
    load(image, runtime)
    listed = subprocess.run(
        runtime.ctr("snapshots", "ls"), check=True, capture_output=True, text=True
    ).stdout
    assert "mizzen-load-killed" not in listed
    assert chain_ids(image)[-1] in listed
