"""Owns the one table of what mends each reason that a condition or a waiting pod can have.

Does not own the reasons (``status``, ``errors``, ``waits``); a test compares them with the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mizzen_operator.status.groups import WAIT_NO_POD
from mizzen_operator.status.holdups import (
    WAIT_CREATING,
    WAIT_ENDED,
    WAIT_ENDING,
    WAIT_READINESS,
    WAIT_RESTARTING,
    WAIT_SCHEDULING,
    WAIT_STARTUP,
)

_PULL = (
    "correct spec.engine.images, or give the node access to the registry with "
    "spec.engine.imagePullSecrets; the kubelet then tries again by itself"
)
_CONFIG = (
    "make what the message names (a Secret or a key in it that an environment variable refers to); "
    "the kubelet then tries again by itself"
)
_LOGS = (
    "read why it ended: kubectl logs -n {namespace} POD --previous; out of memory (OOMKilled): "
    "raise spec.worker.resources or lower spec.engine.kvTokens"
)
_WAIT_FOR_GROUPS = (
    "look at the pods below; none there: kubectl get events -n {namespace} tells who refuses them"
)

REMEDY_BY_REASON: Mapping[str, str] = {
    # Accepted and Ready
    "InvalidSpec": "change the field that the message names: kubectl edit misvc -n {namespace} "
    "{name}; mizzen plan -f FILE checks a file before it is applied",
    "NotAvailable": "this version does not have what the message names: remove it, or upgrade",
    "NameConflict": "delete or rename the object that the message names, or create the service "
    "under another name",
    "ClaimNotShareable": "use a claim with access mode ReadOnlyMany or ReadWriteMany, or topology "
    "Unified with one replica",
    "InvalidPodTemplate": "change what the message names (it is the API server's or an admission "
    "policy's), in the spec or in the policy; it is tried again by itself",
    "WiringFault": "report it as a fault of the operator, with the message, and set "
    "spec.worker.parallelism.nodes to 1 until it is mended",
    "SpecRefused": "mend the spec first: the message of Accepted names the field",
    "GroupsNotReady": "look at the groups below that are not ready",
    "TokenizersNotReady": "look at the tokenizer pods below that are not ready",
    # ModelReady
    "ClaimNotFound": "create the claim that the message names, with the weights on it, or "
    "correct spec.model.source.pvc.claimName",
    "VolumePending": "kubectl describe pvc -n {namespace} tells what the claim waits for: a "
    "storage class, a volume, or its first pod",
    "Downloading": "wait: kubectl logs -n {namespace} -l serving.mizzen.dev/role=weights shows how "
    "far it is; spec.stopped pauses it",
    "RateLimited": "wait: it is tried again by itself; a token (spec.model.source.huggingFace"
    ".tokenSecretRef) or a mirror has higher limits",
    "Unreachable": "see that pods of namespace {namespace} reach the source: DNS, proxy, firewall, "
    "egress policies of the namespace",
    "NotFound": "correct the name or the revision in spec.model.source: the source does not have "
    "what the message names",
    "Unauthorized": "put a token or keys that may read it into the Secret that the source names, "
    "or accept the model's licence; then delete the Job that the message names",
    "VerifyFailed": "what came is not what the source says it is: delete the Job that the message "
    "names to try again, or take another mirror",
    "NoSpace": "raise spec.model.cache.size (a new claim), or make the claim larger by hand and "
    "delete the Job that the message names",
    "InvalidSource": "correct what the message names in spec.model.source: this is no model that "
    "can be fetched and served",
    "SourceChanged": "change spec.model.cache.refresh to take what the source has now: that makes "
    "another claim and a new revision",
    "DownloadFailed": "read kubectl logs -n {namespace} job/JOB of the Job that the message names, "
    "mend it, then delete that Job to try again",
    "WeightsNotReady": "condition ModelReady says how far the weights are, or what keeps them away",
    "NotLookedAt": "let the operator get persistentvolumeclaims in namespace {namespace} (its role "
    "in the Helm chart has this right), or wait until a group has loaded the model",
    # Fits
    "InsufficientMemory": "do one of what the message of Fits proposes; it is an estimate: without "
    "spec.worker.gpu.class, .memory (on CPUs: the limit) pods start unchecked",
    "UnknownGpuClass": "correct spec.worker.gpu.class, state spec.worker.gpu.memory instead, or "
    "add the class to the operator: helm upgrade with gpuClasses",
    # Placed
    "Unschedulable": "make room for the pod or ask for less (spec.worker.gpu, .resources); "
    "a taint, a selector or a volume in the message tells which nodes are shut to it",
    "Pending": "wait: the scheduler takes seconds; longer without a message of it means that it "
    "does not run, or that a quota keeps the pods from being made",
    "QuotaPending": "raise the quota that the message names, or free some of it: kubectl describe "
    "quota -n {namespace}",
    "PodsRefused": "change what the message names: a policy of the namespace (LimitRange, pod "
    "security, webhook), or the field of the spec that it is against; pods are tried again",
    # Available and Progressing
    "TemplateRefused": "mend what the message names first: Accepted tells the field",
    "Stopped": "set spec.stopped to false to serve again",
    "ScaledToZero": "kubectl scale mirs -n {namespace} {name}-worker --replicas=1 serves again",
    "NoReadyGroup": _WAIT_FOR_GROUPS,
    "NoReadyTokenizer": "look at the tokenizer pods below: they are ready once they reach a ready "
    "worker group",
    "Paused": "set spec.paused to false to let the operator go on",
    "ProgressDeadlineExceeded": "read the log of the pod that is late; if it only loads a large "
    "model, raise spec.engine.startupDeadlineSeconds",
    "RollingOut": "wait: the message tells what the next step waits for",
    "TokenizersStarting": "wait: tokenizer pods take seconds once a worker group is ready",
    # Granted, of a role scaler
    "OutOfBounds": "scale it to a number that the message allows; an autoscaler that writes it "
    "needs the same bounds",
    "ServiceRefused": "mend the service first: the message of its Accepted names the field",
    # RoutingReady
    "ServiceMissing": "wait: the operator makes it; if it does not come, read the operator's log",
    "AddressPending": "give the cluster a controller for Services of type LoadBalancer, or set "
    "spec.routing.service.type to ClusterIP",
    "NotAccepted": "the words are those of the Gateway's controller: change spec.routing.httpRoute"
    ".parentRefs or .hostnames, or listeners and allowedRoutes of the Gateway",
    "RefsNotResolved": "the words are those of the Gateway's controller: let it reach what the "
    "message names (a Service, an endpoint picker); kubectl get service -n {namespace}",
    "GatewayPending": "see that the Gateway that the message names exists and a controller runs it "
    "(kubectl get gateways -A), or correct spec.routing.httpRoute.parentRefs",
    # MonitoringReady and RoutingReady
    "ApiNotInstalled": "install what the message names, or take back the field that it names; pods "
    "serve without it",
    "NotAllowed": "helm upgrade the operator's chart with the value that the message names: that "
    "gives it the right",
    "NoAnswer": "wait: it is asked for again by itself; the API server's error is in the "
    "operator's log",
    "NotApplied": "wait: the operator makes it; if it does not come, read the operator's log",
    # Degraded
    "ReconcileError": "the message is the API server's: mend the quota, the admission policy or "
    "the operator's role that it names; the operator tries again by itself",
    "Restarting": _LOGS,
    "RestartBudgetExhausted": "read why its pods end: kubectl logs -n {namespace} POD --previous; "
    "then take the annotation away that the message names, or change spec.worker.restart",
    "CrashLoopBackOff": _LOGS,
    "ImagePullBackOff": _PULL,
    "ErrImageNeverPull": "set spec.engine.imagePullPolicy to IfNotPresent, or load the image onto "
    "the node",
    "InvalidImageName": "correct spec.engine.images: the name is no valid image reference",
    "SecretMissing": _CONFIG,
    "CreateContainerConfigError": _CONFIG,
    "CreateContainerError": "the message is the container runtime's: look at the node it names",
    "RunContainerError": "the message is the container runtime's: look at the node (GPU driver, "
    "devices, mounts)",
    # What a pod waits for
    WAIT_SCHEDULING: "wait: the scheduler takes seconds; if it does not come, see that it runs",
    WAIT_CREATING: "wait: volumes and image come first; a warning of the kubelet below tells what "
    "fails",
    WAIT_NO_POD: "wait: a pod is made within seconds; if it is not, kubectl describe statefulset "
    "-n {namespace} tells why",
    WAIT_STARTUP: "wait until the model is loaded: kubectl logs -n {namespace} POD shows how far "
    "it is",
    WAIT_READINESS: "kubectl logs -n {namespace} POD tells why it takes no traffic; a tokenizer "
    "pod waits for its first ready worker",
    WAIT_RESTARTING: _LOGS,
    WAIT_ENDING: "wait: its requests end or move on, then it is killed; if its node does not "
    "answer (kubectl get nodes), it is removed after spec.worker.restart.nodeLostSeconds",
    WAIT_ENDED: "wait: its controller makes a new pod; kubectl describe pod tells why it ended "
    "(evicted, preempted, node lost)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The service that a remedy speaks of."""

    namespace: str
    name: str


def remedy_of(reason: str, place: Place) -> str:
    """The remedy as a sentence about this service."""
    text = REMEDY_BY_REASON.get(reason)
    if text is None:
        return f"this version of mizzen has no remedy for {reason}: its message is all there is"
    return text.format(namespace=place.namespace, name=place.name)
