"""Owns `make demo` after the set-up: from a running cluster to a streamed answer.

Not here: which cluster (demo_target.py), the set-up (setup.py), the cluster itself (cluster.py).

Every step is safe to repeat: running the demo again, also after it was interrupted anywhere, goes
on from what is there.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import yaml
from helm_python import Config, HelmError, HelmNotFoundError
from tests.devcluster.cluster import ClusterError
from tests.devcluster.control import ControlError
from tests.devcluster.demo_target import DemoError, Images, Target, open_current, open_local
from tests.devcluster.folders import REPOSITORY
from tests.devcluster.setup import MODEL_FILE, user_places
from tests.devcluster.steps import StepError

LOGS = REPOSITORY / "out" / "demo"
SAMPLE = REPOSITORY / "crds" / "samples" / "smollm2.yaml"
CHART = REPOSITORY / "charts" / "mizzen"
RELEASE, SYSTEM = "mizzen", "mizzen-system"
KIND = "inferenceservices.serving.mizzen.dev"
QUESTION = "What is the capital of France?"
_READY_TIMEOUT_S = 600.0
_EXPECTED = (
    *(ClusterError, ControlError, DemoError, HelmError, StepError),
    *(OSError, openai.OpenAIError, subprocess.SubprocessError),
)


def _say(text: str) -> None:
    print(text, flush=True)


def _object(target: Target, *what: str) -> dict[str, Any] | None:
    """Return an object, or None when it is not there."""
    shown = target.ask("get", *what, "--output", "json", "--ignore-not-found")
    if shown.returncode != 0:
        raise DemoError(f"kubectl get {' '.join(what)}: {shown.stderr.strip()}")
    found: dict[str, Any] | None = json.loads(shown.stdout) if shown.stdout.strip() else None
    return found


@contextlib.contextmanager
def _errors_into(file: Path) -> Iterator[None]:
    """Keep what Helm's library writes to standard error, past its own logging, in a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    saved = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def install_chart(kubeconfig: str, values: Mapping[str, Any], *, namespace: str = SYSTEM) -> None:
    """Install the chart, or bring its release to these values; "" is the current kubeconfig."""
    with Config(kubeconfig_path=kubeconfig or None, namespace=namespace) as helm:
        try:
            helm.status(RELEASE)
        except HelmNotFoundError:
            helm.install(CHART, RELEASE, dict(values), namespace=namespace, create_namespace=True)
        else:
            helm.upgrade(CHART, RELEASE, dict(values), namespace=namespace, reset_values=True)


def chart_values(target: Target) -> dict[str, Any]:
    """Values of the chart that name the target's images."""
    images = target.images
    return {
        "image": images.operator,
        "frontendImage": images.frontend,
        "workerImage": images.worker,
    }


def install_operator(target: Target) -> None:
    """Install the chart, or bring an older release up to date; returns when it is available."""
    with _errors_into(LOGS / "helm.log"):
        install_chart(target.kubeconfig, chart_values(target))
    target.do(
        *("rollout", "status", "deployment", "--namespace", SYSTEM, "--timeout=120s"),
    )


def provide_model(target: Target, namespace: str, claim: str) -> None:
    """Make sure that the claim is there: in the local cluster a static volume of the set-up's."""
    if _object(target, "pvc", claim, "--namespace", namespace):
        return
    model = user_places().model
    if target.cluster is None:
        raise DemoError(
            f"the claim {namespace}/{claim} is not there: create it (ReadOnlyMany or "
            f"ReadWriteMany) with {model / MODEL_FILE} in its root, then run this again"
        )
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{claim}"},
        "spec": {
            **common,
            "capacity": size,
            "hostPath": {"path": str(model), "type": "Directory"},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": namespace, "name": claim},
        },
    }
    wanted = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "namespace": namespace},
        "spec": {
            **common,
            "volumeName": f"{namespace}-{claim}",
            "resources": {"requests": size},
        },
    }
    target.do("apply", "--filename", "-", stdin=yaml.safe_dump_all([volume, wanted]))


def apply_service(target: Target, name: str, namespace: str) -> None:
    """Apply the sample; a service of an earlier demo gets today's images."""
    existed = _object(target, KIND, name, "--namespace", namespace) is not None
    _say(f"$ kubectl apply -f {SAMPLE.relative_to(REPOSITORY)}")
    target.do("apply", "--namespace", namespace, "--filename", str(SAMPLE))
    if existed:
        images = {"frontend": target.images.frontend, "worker": target.images.worker}
        patch = json.dumps({"spec": {"engine": {"images": images}}})
        target.do(*("patch", KIND, name, "--namespace", namespace, "--type=merge", "-p", patch))


def await_ready(target: Target, name: str, namespace: str) -> None:
    """Show each condition when it changes; returns when the service is Ready."""
    began = time.monotonic()
    seen: dict[str, str] = {}
    while time.monotonic() - began < _READY_TIMEOUT_S:
        service = _object(target, KIND, name, "--namespace", namespace) or {}
        status = service.get("status", {})
        for condition in status.get("conditions", ()):
            text = f"{condition['status']}: {condition['reason']}"
            if condition.get("message"):
                text += f": {condition['message']}"
            if seen.get(condition["type"]) != text:
                seen[condition["type"]] = text
                _say(f"  [{time.monotonic() - began:4.0f} s] {condition['type']}={text}")
        if _is_ready(service):
            return
        time.sleep(0.5)
    raise DemoError(f"the service {namespace}/{name} is not Ready after {_READY_TIMEOUT_S:.0f} s")


def _is_ready(service: dict[str, Any]) -> bool:
    generation = service.get("metadata", {}).get("generation")
    return any(
        condition["type"] == "Ready"
        and condition["status"] == "True"
        and condition.get("observedGeneration", generation) == generation
        for condition in service.get("status", {}).get("conditions", ())
    )


def chat(address: str, model: str) -> None:
    """Stream one answer to the terminal as it is made."""
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", timeout=120, max_retries=0)
    _say(f"\n> {QUESTION}")
    pieces, began, first = 0, time.monotonic(), 0.0
    with client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=64,
        stream=True,
    ) as stream:
        for chunk in stream:
            text = chunk.choices[0].delta.content if chunk.choices else None
            if text:
                first = first or time.monotonic() - began
                pieces += 1
                print(text, end="", flush=True)
    if not pieces:
        raise DemoError("the answer is empty: see the worker's log")
    _say(f"\n  (first token after {first:.2f} s, all after {time.monotonic() - began:.2f} s)\n")


def explain(target: Target, address: str, model: str, port: str) -> None:
    """Print the lines that reach what runs now."""
    _say("The service goes on running. Talk to it:\n")
    body = json.dumps(
        {
            "model": model,
            "temperature": 0,
            "stream": True,
            "messages": [{"role": "user", "content": QUESTION}],
        }
    )
    if target.cluster is not None:
        _say(f"  export KUBECONFIG={shlex.quote(str(target.kubeconfig))}")
        _say(f"  alias kubectl={target.kubectl[0]}")
        _say(
            f"  curl -N {address}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
            f"    -d '{body}'"
        )
    else:
        _say(f"  kubectl port-forward {port}")
    _say("  kubectl get misvc,pods")
    _say("  kubectl describe misvc")
    if target.cluster is not None:
        _say("\n`make demo-down` ends the cluster, `make clean` also gives the disk back.")


def _open(environment: dict[str, str]) -> Target:
    where = environment.get("CLUSTER") or "local"
    if where == "local":
        return open_local(LOGS)
    if where == "current":
        images = Images(
            operator=environment.get("IMAGE_OPERATOR", ""),
            frontend=environment.get("IMAGE_FRONTEND", ""),
            worker=environment.get("IMAGE_WORKER", ""),
        )
        return open_current(images, is_agreed=environment.get("YES") == "1")
    raise DemoError(f"CLUSTER: {where!r} is neither local nor current")


def demo(target: Target) -> None:
    """Go the whole way in a cluster."""
    sample = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))
    name = sample["metadata"]["name"]
    namespace = sample["metadata"].get("namespace", "default")
    model = sample["spec"]["model"].get("servedName", name)
    _say(f"installing the operator: helm upgrade --install {RELEASE} {CHART.name} -n {SYSTEM}")
    install_operator(target)
    provide_model(target, namespace, sample["spec"]["model"]["source"]["pvc"]["claimName"])
    apply_service(target, name, namespace)
    await_ready(target, name, namespace)
    port = sample["spec"].get("routing", {}).get("service", {}).get("port", 80)
    with target.reach(namespace, name, port) as address:
        chat(address, model)
        explain(target, address, model, f"service/{name} 8080:{port}")


def main(environment: dict[str, str]) -> int:
    """Run the demo; returns the exit status."""
    target: Target | None = None
    try:
        target = _open(environment)
        demo(target)
    except _EXPECTED as error:
        _fail(str(error), target, LOGS)
        return 1
    except KeyboardInterrupt:
        print("\ndemo interrupted: `make demo` goes on, `make demo-down` ends it", file=sys.stderr)
        return 130
    return 0


def _fail(reason: str, target: Target | None, folder: Path) -> None:
    print(f"\ndemo failed: {reason}", file=sys.stderr, flush=True)
    if target is not None:
        target.dump(folder)
        print(f"logs, events and objects: {folder}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))
