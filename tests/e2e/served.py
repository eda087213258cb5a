"""Services of a real model in a real cluster, for tests: images, claim, chat, and sudden death."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import yaml
from tests.devcluster.cluster import Cluster
from tests.devcluster.demo import SAMPLE, provide_model
from tests.devcluster.demo_target import Images, Target
from tests.devcluster.images import user_builder
from tests.devcluster.images_load import load_everywhere
from tests.e2e.operator_process import apply, condition, get
from tests.e2e.waiting import wait_for

CLAIM = "smollm2-weights"
MODEL = "SmolLM2-135M-Instruct"
READY_S = 600.0
"""Long enough for a whole roll-out on a slow machine, drains included."""


def target_of(cluster: Cluster) -> Target:
    """The cluster with the images of the working tree on its nodes."""
    names = user_builder().build_all(lambda _: None)
    load_everywhere(cluster, names.values(), lambda _: None)
    return Target(
        kubectl=tuple(cluster.kubectl_command()),
        kubeconfig=str(cluster.kubeconfig),
        images=Images(**names),
        cluster=cluster,
    )


@contextmanager
def namespace_with_model(target: Target, name: str) -> Iterator[str]:
    """A namespace under restricted pod security with the claim of the weights."""
    target.do("create", "namespace", name)
    target.do("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    provide_model(target, name, CLAIM)
    try:
        yield name
    finally:
        target.do("delete", "namespace", name, "--timeout=600s")
        target.do("delete", "persistentvolume", f"{name}-{CLAIM}", "--ignore-not-found")


def sample_service(name: str, **spec: Any) -> dict[str, Any]:
    """The sample that users apply, under another name and with other fields."""
    service: dict[str, Any] = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))
    service["metadata"] = {"name": name}
    service["spec"] |= spec
    return service


def apply_and_wait(cluster: Cluster, namespace: str, service: dict[str, Any]) -> float:
    """Seconds from the apply until the service is Ready as it is written now."""
    name = service["metadata"]["name"]
    began_s = time.monotonic()
    apply(cluster, namespace, service)
    wait_until_ready(cluster, namespace, name)
    return time.monotonic() - began_s


def wait_until_ready(cluster: Cluster, namespace: str, name: str) -> None:
    """Ready at the current generation; the failure shows all conditions."""

    def is_ready() -> bool:
        found = get(cluster, "inferenceservice", name, "-n", namespace)
        ready = condition(cluster, namespace, name, "Ready")
        is_current = ready.get("observedGeneration") == found["metadata"]["generation"]
        return bool(is_current and ready["status"] == "True")

    try:
        wait_for(f"{name} is Ready", is_ready, timeout_s=READY_S)
    except AssertionError as error:
        error.add_note(cluster.kubectl("describe", "misvc,pods", "-n", namespace)[-6000:])
        raise


def client_of(
    cluster: Cluster, namespace: str, name: str, *, timeout_s: float = 60
) -> openai.OpenAI:
    """An OpenAI client at the service's own Service; to be closed."""
    port = cluster.forward(namespace, name, 80)
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=timeout_s, max_retries=0
    )


def ask(client: openai.OpenAI, question: str, *, max_tokens: int = 24) -> str:
    """A whole answer."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=max_tokens,
    )
    return answer.choices[0].message.content or ""


def stream(client: openai.OpenAI, question: str, *, max_tokens: int = 24) -> Iterator[str]:
    """The pieces of an answer as they come; ends without error only if a finish reason came."""
    finish = None
    with client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=max_tokens,
        stream=True,
    ) as chunks:
        for chunk in chunks:
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                if choice.delta.content:
                    yield choice.delta.content
    assert finish is not None, "the stream ended without a finish reason and without an error"


def kill_processes(pod: dict[str, Any]) -> int:
    """SIGKILL to every process of a pod but its pause process; their number."""
    uid = pod["metadata"]["uid"]
    killed = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            cgroup = (folder / "cgroup").read_text()
            command = (folder / "cmdline").read_bytes().split(b"\0")[0]
        except OSError:
            continue
        is_of_pod = uid in cgroup or uid.replace("-", "_") in cgroup
        if is_of_pod and command and not command.endswith(b"/pause"):
            os.kill(int(folder.name), signal.SIGKILL)
            killed += 1
    return killed


def pods_of(cluster: Cluster, namespace: str, selector: str) -> list[dict[str, Any]]:
    found = get(cluster, "pods", "-n", namespace, "-l", selector) or {"items": []}
    return list(found["items"])


@dataclass
class StreamingClients:
    """Clients that stream one answer after the other until told to stop, and what they saw."""

    client: openai.OpenAI
    number: int
    answers: list[tuple[float, str]] = field(default_factory=list)
    typed_errors: list[tuple[float, str]] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    num_open: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "StreamingClients":
        for index in range(self.number):
            thread = threading.Thread(target=self._run, args=(index,))
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, index: int) -> None:
        question = f"Count from {index} to twenty."
        while not self._stop.is_set():
            try:
                text = "".join(self._watched(question))
                self.answers.append((time.monotonic(), f"{index}: {text}"))
            except openai.APIError as error:
                text = f"{type(error).__name__}: {error}: {json.dumps(error.body, default=str)}"
                self.typed_errors.append((time.monotonic(), text))
                self._stop.wait(0.2)
            except (AssertionError, OSError, ValueError, httpx.HTTPError) as error:
                self.breaches.append(f"{type(error).__name__}: {error}")
                self._stop.wait(0.2)

    def _watched(self, question: str) -> Iterator[str]:
        self.num_open += 1
        try:
            yield from stream(self.client, question, max_tokens=48)
        finally:
            self.num_open -= 1
