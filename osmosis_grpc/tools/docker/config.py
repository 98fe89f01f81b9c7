"""The configuration of sandboxes in containers, and what the daemon is asked to create."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.tools.sandbox import Isolation, Protection

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
SERVER_LABEL = "osmosis-grpc.server"
"""The label with the server that owns a container."""
PROCESS_LABEL = "osmosis-grpc.process"
"""The label with the process of the server. A later process of the server removes the container."""
ROLLOUT_LABEL = "osmosis-grpc.rollout"
NO_NETWORK = "none"
MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerConfig:
    """How containers are made. Times are in seconds. Raises ValueError naming a field that is out of bounds.

    The image needs sh, cat, dd, env, find, grep, head, kill, mkdir, mv, sleep, stat, tar and touch, as busybox and
    Debian have them. The daemon has to have it already.
    """

    server_id: str
    """The name of this agent server. Its next process removes the containers that this process left behind, so no two
    running processes may have the same name. At most 63 letters, digits, dots, dashes and underscores."""
    image: str
    url: str = ""
    """The address of the daemon, such as unix:///run/docker.sock; empty for DOCKER_HOST or the usual socket."""
    folder: str = "/work"
    """The working folder in the container. It is in memory and empty."""
    user: int = 65532
    """The user and group of the programs. Not 0."""
    network: str = NO_NETWORK
    """The network of Docker to which the container belongs; "none" for no network."""
    cpus: float = 1.0
    memory: int = 1024 * MB
    """The most bytes of memory, the working folder included."""
    disk: int = 512 * MB
    """The most bytes in the working folder, and in /tmp."""
    processes: int = 256
    """The most processes and threads of all programs together."""
    lifetime: float = 3600.0
    """The container ends after this time, also if no server is left."""
    request_timeout: float = 60.0
    """One call of the daemon may take this long."""
    snapshot_bytes: int = 256 * MB
    """The most bytes of a snapshot."""
    python: str = "python3"
    """The Python interpreter of the image; empty if it has none."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to HOME and TMPDIR."""

    def __post_init__(self) -> None:
        if not LABEL.fullmatch(self.server_id):
            raise ValueError(f"server_id: {self.server_id!r:.80} is not 1 to 63 letters, digits, -_.")
        if not self.image:
            raise ValueError("image: is empty")
        if not self.folder.startswith("/") or self.folder.rstrip("/") in ("", "/tmp"):  # noqa: S108
            raise ValueError(f"folder: {self.folder!r} is not an absolute path besides / and /tmp")
        if self.user < 1:
            raise ValueError("user: is not above 0; programs of a sandbox do not run as root")
        for name in ("memory", "disk", "processes", "lifetime", "request_timeout", "snapshot_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is less than 1")
        if not self.cpus > 0:
            raise ValueError(f"cpus: {self.cpus} is not above 0")

    @property
    def isolation(self) -> Isolation:
        """Return the isolation that containers have."""
        connected = self.network != NO_NETWORK
        made = frozenset(set(Protection) - ({Protection.NETWORK} if connected else set()))
        return Isolation("docker", made, f"the container is in the network {self.network}" if connected else "")


def container_body(config: DockerConfig, process: str, rollout: str) -> dict[str, Any]:
    """Return what the daemon is asked to create.

    Args:
        config: The configuration.
        process: The process of the server, for a label.
        rollout: The rollout, for a label.
    """
    variables = {"HOME": config.folder, "TMPDIR": "/tmp", **config.environment}  # noqa: S108
    in_memory = f"rw,exec,nosuid,nodev,size={config.disk},uid={config.user},gid={config.user},mode=0755"
    return {
        "Image": config.image,
        # The first process does nothing. Docker's init collects the processes that lose their parent.
        "Entrypoint": ["sleep", str(int(config.lifetime))],
        "Cmd": [],
        "User": f"{config.user}:{config.user}",
        "WorkingDir": config.folder,
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Labels": {SERVER_LABEL: config.server_id, PROCESS_LABEL: process, ROLLOUT_LABEL: rollout},
        "NetworkDisabled": config.network == NO_NETWORK,
        "HostConfig": {
            "NetworkMode": config.network,
            "Init": True,
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": config.processes,
            "Memory": config.memory,
            "MemorySwap": config.memory,
            "NanoCpus": int(config.cpus * 1e9),
            "Tmpfs": {config.folder: in_memory, "/tmp": in_memory},  # noqa: S108
            "LogConfig": {"Type": "none"},
        },
    }
