"""The configuration of sandboxes in pods, and the manifest of a pod."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_grpc.tools.sandbox import Isolation, Protection

LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
SERVER_LABEL = "osmosis-grpc/server"
"""The label with the server that owns a pod."""
PROCESS_LABEL = "osmosis-grpc/process"
"""The label with the process of the server. A later process of the server removes the pod."""
ROLLOUT_ANNOTATION = "osmosis-grpc/rollout"
CONTAINER = "sandbox"
MADE = frozenset({Protection.USER, Protection.FILES, Protection.PROCESSES})
"""The protections of the manifest itself. A cluster's network plugin and its nodes provide the others."""
FIRST_PROCESS = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
"""The first process of a pod, which only collects the processes that lose their parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesConfig:
    """How pods are made. Times are in seconds. Raises ValueError naming a field that is out of bounds.

    The image needs sh, cat, dd, env, find, grep, head, kill, mkdir, mv, sleep, stat, tar and touch, as busybox and
    Debian have them.
    """

    server_id: str
    """The name of this agent server: at most 63 letters, digits, dots, dashes and underscores. A process removes the
    pods that an earlier process with this name has left, so no two running processes may have the same name."""
    image: str
    namespace: str = "default"
    kubeconfig: Path | None = None
    """The kubeconfig. None means the service account inside a cluster, and otherwise the usual file."""
    context: str | None = None
    """The context of the kubeconfig; None for its current one."""
    folder: str = "/work"
    """The working folder in the pod. It is an empty volume."""
    user: int = 65532
    """The user and group of the programs. Not 0."""
    cpu: str = "1"
    memory: str = "1Gi"
    disk: str = "1Gi"
    """The size of each of the two volumes, and of the pod's ephemeral storage."""
    lifetime: float = 3600.0
    """The cluster ends the pod after this time, even if no server is left."""
    ready_within: float = 120.0
    """The pod must be running within this time."""
    attempts: int = 5
    """How many times one call of the API is tried."""
    request_timeout: float = 30.0
    """The timeout of one try of a call."""
    snapshot_bytes: int = 256 * 1024 * 1024
    """The largest size of a snapshot, in bytes."""
    warm: int = 0
    """The number of pods that are started before a sandbox needs them."""
    python: str = "python3"
    """The Python interpreter of the image; empty if it has none."""
    operator_provides: Collection[Protection] = ()
    """Protections that the cluster's operator provides, because this project cannot check them: NETWORK with a
    NetworkPolicy that the network plugin enforces, LIMITS with a limit of processes for each pod."""
    pod: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the pod's spec, such as nodeSelector, tolerations or runtimeClassName."""

    def __post_init__(self) -> None:
        if not LABEL.fullmatch(self.server_id):
            raise ValueError(
                f"server_id: {self.server_id!r:.80} is not a label of Kubernetes: 1 to 63 letters, digits, -_."
            )
        if not self.folder.startswith("/") or self.folder.rstrip("/") in ("", "/tmp"):  # noqa: S108
            raise ValueError(f"folder: {self.folder!r} is not an absolute path besides / and /tmp")
        if self.user < 1:
            raise ValueError("user: is not above 0; programs of a sandbox do not run as root")
        for name in ("lifetime", "ready_within", "attempts", "request_timeout", "snapshot_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is less than 1")
        own = sorted({"containers", "volumes", "securityContext", "restartPolicy"} & self.pod.keys())
        if own:
            raise ValueError(f"pod: {', '.join(own)} are set by this project; leave them out")

    @property
    def isolation(self) -> Isolation:
        """Return the isolation that pods have."""
        given = MADE | {Protection(name) for name in self.operator_provides}
        missing = set(Protection) - given
        reason = "the cluster's operator makes it; see operator_provides in docs/kubernetes.md" if missing else ""
        return Isolation("kubernetes", frozenset(given), reason)


def pod_manifest(config: KubernetesConfig, name: str, process: str, rollout: str) -> dict[str, Any]:
    """Return the manifest of a pod. It holds no credential of the cluster."""
    resources = {"cpu": config.cpu, "memory": config.memory, "ephemeral-storage": config.disk}
    container = {
        "name": CONTAINER,
        "image": config.image,
        "command": ["sh", "-c", FIRST_PROCESS],
        "workingDir": config.folder,
        "env": [{"name": "HOME", "value": config.folder}, {"name": "TMPDIR", "value": "/tmp"}],  # noqa: S108
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "work", "mountPath": config.folder},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        **config.pod,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(config.lifetime),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": config.user,
            "runAsGroup": config.user,
            "fsGroup": config.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": part, "emptyDir": {"sizeLimit": config.disk}} for part in ("work", "tmp")],
    }
    labels = {SERVER_LABEL: config.server_id, PROCESS_LABEL: process}
    metadata = {"name": name, "labels": labels, "annotations": {ROLLOUT_ANNOTATION: rollout}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
