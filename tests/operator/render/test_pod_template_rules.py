"""What a user's pod template may hold: each thing that is refused is told with place and remedy."""

from typing import Any

import pytest
from tests.operator.documents import resolved

from mizzen_operator.errors import Problem
from mizzen_operator.render.pod_template_rules import MAX_BYTES
from mizzen_operator.render.preflight import pod_template_problems, render_problems
from mizzen_operator.worker_contract import CONTAINER


def problems(template: dict[str, Any], role: str = "worker") -> list[Problem]:
    return pod_template_problems(resolved(topology="Split", **{role: {"podTemplate": template}}))


def in_spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


def ours(**fields: Any) -> dict[str, Any]:
    return in_spec(containers=[{"name": CONTAINER, **fields}])


def side(**fields: Any) -> dict[str, Any]:
    return in_spec(containers=[{"name": "side", "image": "i", **fields}])


def context(**fields: Any) -> dict[str, Any]:
    return side(securityContext=fields)


def volume(**fields: Any) -> dict[str, Any]:
    return in_spec(volumes=[fields])


RESTRICTED = "restricted pod security standard"


@pytest.mark.parametrize("role", ["worker", "tokenizer"])
@pytest.mark.parametrize(
    "template",
    [
        {"metadata": {"labels": {"env": "prod", "containers": "x"}, "annotations": {"a.b/c": "1"}}},
        in_spec(
            nodeSelector={"env": "a"},
            tolerations=[{"operator": "Exists"}],
            affinity={"nodeAffinity": {}},
            topologySpreadConstraints=[{"topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}],
            priorityClassName="high",
            schedulerName="other",
            runtimeClassName="gvisor",
            imagePullSecrets=[{"name": "registry"}],
            securityContext={"runAsUser": 7, "fsGroup": 7, "supplementalGroups": [1]},
        ),
        ours(
            env=[{"name": "HOME", "value": "/x"}],
            volumeMounts=[{"name": "x", "mountPath": "/x"}, {"name": "x", "mountPath": "/tmp/x"}],
        ),
        side(
            ports=[{"containerPort": 9000, "name": "own"}],
            resources={"limits": {"cpu": 1, "memory": "1Gi"}, "requests": {"cpu": 0.5}},
            securityContext={"readOnlyRootFilesystem": True, "runAsUser": 7},
            livenessProbe={"httpGet": {"port": 9000}},
            volumeMounts=[{"name": "cache", "mountPath": "/cache"}],
        ),
        context(capabilities={"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}, privileged=False),
        in_spec(initContainers=[{"name": "log", "image": "i", "restartPolicy": "Always"}]),
        volume(name="x", persistentVolumeClaim={"claimName": "x"}),
        volume(name="tmp", emptyDir={"sizeLimit": "2Gi"}),
    ],
)
def test_what_serves_a_site_is_let_through(template: dict[str, Any], role: str) -> None:
    assert problems(template, role) == []


@pytest.mark.parametrize(
    ("template", "field", "words"),
    [
        ({"kind": "Pod"}, ".kind", "metadata, spec may be set here"),
        ({"metadata": {"name": "x"}}, ".metadata.name", "labels, annotations may be set here"),
        ({"metadata": {"labels": {"serving.mizzen.dev/role": "x"}}},
         ".metadata.labels[serving.mizzen.dev/role]", "use a prefix of your own"),
        ({"metadata": {"labels": {"app.kubernetes.io/name": "x"}}},
         ".metadata.labels[app.kubernetes.io/name]", "use a prefix of your own"),
        ({"metadata": {"annotations": {"serving.mizzen.dev/epoch": "7"}}},
         ".metadata.annotations[serving.mizzen.dev/epoch]", "use a prefix of your own"),
        (in_spec(nodeSelectr={"a": "b"}), ".spec.nodeSelectr", "compare its spelling"),
        (in_spec(serviceAccountName="x"), ".spec.serviceAccountName", "an account of their own"),
        (in_spec(automountServiceAccountToken=True), ".spec.automountServiceAccountToken", "no "
         "access to the API"),
        (in_spec(hostNetwork=True), ".spec.hostNetwork", "keep apart from their node"),
        (in_spec(hostPID=True), ".spec.hostPID", "keep apart from their node"),
        (in_spec(shareProcessNamespace=True), ".spec.shareProcessNamespace", "keep apart"),
        (in_spec(restartPolicy="Never"), ".spec.restartPolicy", "started again"),
        (in_spec(terminationGracePeriodSeconds=1), ".spec.terminationGracePeriodSeconds",
         "use spec.worker.drain.timeoutSeconds"),
        (in_spec(nodeName="n"), ".spec.nodeName", "use nodeSelector or affinity"),
        (in_spec(dnsPolicy="None"), ".spec.dnsPolicy", "use dnsConfig"),
        (ours(image="x"), ".spec.containers[0].image", "use spec.engine.images"),
        (ours(args=["x"]), ".spec.containers[0].args", "use spec.engine.args"),
        (ours(command=["x"]), ".spec.containers[0].command", "the operator starts the engine"),
        (ours(ports=[]), ".spec.containers[0].ports", "name, env, volumeMounts may be set here"),
        (ours(resources={}), ".spec.containers[0].resources", "use resources of the role"),
        (ours(readinessProbe={}), ".spec.containers[0].readinessProbe", "remove it"),
        (ours(lifecycle={}), ".spec.containers[0].lifecycle", "use spec.worker.drain"),
        (ours(securityContext={}), ".spec.containers[0].securityContext", "of the pod"),
        (ours(envFrom=[]), ".spec.containers[0].envFrom", "with valueFrom"),
        (ours(env=[{"name": "MIZZEN_ROLE"}]), ".spec.containers[0].env[0].name",
         "remove that variable"),
        (ours(volumeMounts=[{"name": "x", "mountPath": "/models/"}]),
         ".spec.containers[0].volumeMounts[0].mountPath", "choose another path"),
        (ours(volumeMounts=[{"name": "x", "mountPath": "models"}]),
         ".spec.containers[0].volumeMounts[0].mountPath", "would hide"),
        (ours(volumeMounts=[{"name": "x", "mountPath": "//models/."}]),
         ".spec.containers[0].volumeMounts[0].mountPath", "would hide"),
        (ours(volumeMounts=[{"name": "x", "mountPath": "/etc/mizzen"}]),
         ".spec.containers[0].volumeMounts[0].mountPath", "would hide"),
        (ours(volumeMounts=[{"name": "x", "mountPath": "/"}]),
         ".spec.containers[0].volumeMounts[0].mountPath", "would hide"),
        (in_spec(initContainers=[{"name": CONTAINER}]), ".spec.initContainers[0].name",
         "choose another name"),
        (volume(name="models", emptyDir={}), ".spec.volumes[0].emptyDir", "give yours another "
         "name"),
        (volume(name="tmp", secret={"secretName": "x"}), ".spec.volumes[0].secret",
         "volume tmp is the operator's"),
        (volume(name="x", hostPath={"path": "/"}), ".spec.volumes[0].hostPath", "use one of "
         "configMap"),
        (volume(name="x", emptyDir={"sizeLimit": "1 GB"}), ".spec.volumes[0].emptyDir.sizeLimit",
         "16Gi"),
        (side(resources={"limits": {"memory": "64MB"}}),
         ".spec.containers[0].resources.limits[memory]", "is not a quantity (found 64MB)"),
        (side(ports=[{"containerPort": 30002}]), ".spec.containers[0].ports[0].containerPort",
         "is taken"),
        (side(ports=[{"containerPort": 9, "name": "admin"}]), ".spec.containers[0].ports[0].name",
         "is taken"),
        (side(ports=[{"containerPort": 9, "hostPort": 9}]),
         ".spec.containers[0].ports[0].hostPort", "use a Service"),
        (side(livenessProbe={"httpGet": {"host": "h", "port": 9}}),
         ".spec.containers[0].livenessProbe.httpGet.host", "another host"),
        (side(lifecycle={"preStop": {"tcpSocket": {"host": "h", "port": 9}}}),
         ".spec.containers[0].lifecycle.preStop.tcpSocket.host", "another host"),
        (context(privileged=True), ".spec.containers[0].securityContext.privileged", RESTRICTED),
        (context(allowPrivilegeEscalation=True),
         ".spec.containers[0].securityContext.allowPrivilegeEscalation", RESTRICTED),
        (context(capabilities={"add": ["SYS_ADMIN"]}),
         ".spec.containers[0].securityContext.capabilities", RESTRICTED),
        (context(runAsUser=0), ".spec.containers[0].securityContext.runAsUser", RESTRICTED),
        (context(seccompProfile={"type": "Unconfined"}),
         ".spec.containers[0].securityContext.seccompProfile", RESTRICTED),
        (context(procMount="Unmasked"), ".spec.containers[0].securityContext.procMount",
         "may not be set"),
        (in_spec(securityContext={"runAsNonRoot": False}), ".spec.securityContext.runAsNonRoot",
         RESTRICTED),
        (in_spec(securityContext={"sysctls": []}), ".spec.securityContext.sysctls",
         "may not be set"),
        (in_spec(containers={}), ".spec.containers", "is not a list"),
        (in_spec(containers=["x"]), ".spec.containers[0]", "write one with name"),
        (in_spec(volumes=[{"emptyDir": {}}]), ".spec.volumes[0]", "write one with name"),
        ({"spec": []}, ".spec", "is not a map"),
        ({"metadata": {"labels": []}}, ".metadata.labels", "is not a map"),
        (in_spec(containers=[{"name": "a"}, {"name": "a"}]), ".spec.containers[1]", "is given "
         "twice (found a)"),
        (side(ports=[{"containerPort": 1}, {"containerPort": 1, "protocol": "TCP"}]),
         ".spec.containers[0].ports[1]", "is given twice"),
        (in_spec(**{"$patch": "replace"}), ".spec.$patch", "a template only adds"),
        ({"metadata": {"annotations": {"a": "x" * MAX_BYTES}}}, "", "put what is large into a "
         "ConfigMap"),
    ],
)  # fmt: skip
def test_what_is_refused_is_told(template: dict[str, Any], field: str, words: str) -> None:
    (found,) = problems(template)
    assert found.field == f"spec.worker.podTemplate{field}"
    assert words in found.sentence()
    assert found.reason == "InvalidPodTemplate"


def test_each_role_is_told_by_itself_and_every_fault_at_once() -> None:
    bad = in_spec(hostIPC=True, restartPolicy="Never")
    service = resolved(
        topology="Split", worker={"podTemplate": bad}, tokenizer={"podTemplate": bad}
    )
    assert [item.field for item in render_problems(service)] == [
        f"spec.{role}.podTemplate.spec.{field}"
        for role in ("worker", "tokenizer")
        for field in ("hostIPC", "restartPolicy")
    ]


def test_a_group_of_several_pods_is_still_wired_with_a_template() -> None:
    parallelism = {"tensor": 2, "nodes": 2}
    service = resolved(
        topology="Split", worker={"parallelism": parallelism, "podTemplate": side(env=[])}
    )
    assert render_problems(service) == []


def test_values_of_variables_are_not_told() -> None:
    (problem,) = problems(side(env={"API_TOKEN": "s3cret"}))
    assert problem.message == "is not a list"
    assert "s3cret" not in problem.sentence()


def test_a_template_is_as_large_as_it_is_written() -> None:
    text = "\N{EURO SIGN}" * (MAX_BYTES // 4)
    assert problems({"metadata": {"annotations": {"a": text}}}) == []
