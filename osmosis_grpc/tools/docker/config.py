"""The configuration of sandboxes in containers, and the requests to the daemon that create them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.tools.docker.relays import FOLDER, PROXY_PORT
from osmosis_grpc.tools.sandbox import Isolation, Protection

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
SERVER_LABEL = "osmosis-grpc.server"
"""The label with the server that owns a container."""
PROCESS_LABEL = "osmosis-grpc.process"
"""The label with the process of the server. A later process of the server removes the container."""
ROLLOUT_LABEL = "osmosis-grpc.rollout"
NO_NETWORK = "none"
ADDRESS = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}")
HOST = re.compile(r"(?:\*\.)?[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*")
OF_ROOT = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"]
"""The capabilities that root keeps in a writable container, because package managers need them."""
MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerConfig:
    """How containers are made. Times are in seconds. Raises ValueError naming a field that is out of bounds.

    The image needs sh, cat, dd, env, find, grep, head, kill, mkdir, mv, sleep, stat, tar, timeout and touch, as busybox
    and Debian have them, and perl, python3 or node for `hosts` and `reach`. The daemon has to have it already.
    """

    server_id: str
    """The name of this agent server: at most 63 letters, digits, dots, dashes and underscores. A process removes
    containers that were never started, and folders, which earlier processes with this name have left."""
    image: str
    url: str = ""
    """The address of the daemon, such as unix:///run/docker.sock; empty for DOCKER_HOST or the usual socket."""
    folder: str = "/work"
    """The working folder in the container. It is in memory and empty, unless `writable` keeps the image's. An empty
    text means the folder that the image names, which needs `writable`."""
    user: int | str | None = 65532
    """The user of the programs. 0, a name, or None (the user of the image) needs `writable`."""
    writable: bool = False
    """Whether programs can change the whole file system of their container, as images of tasks expect."""
    network: str = NO_NETWORK
    """The network of Docker to which the container belongs; "none" for no network."""
    hosts: Sequence[str] = ()
    """Hosts that a container without a network can reach through an HTTP proxy on ports 80 and 443, such as pypi.org or
    *.pythonhosted.org. The proxy variables are set in the container. The daemon must run on this machine."""
    reach: Sequence[str] = ()
    """Addresses of this machine that a container can reach on its own loopback, such as 127.0.0.1:8080. The daemon must
    run on this machine."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Read-only folders of the daemon's machine, by their paths in the container."""
    cpus: float = 1.0
    memory: int = 1024 * MB
    """The limit of memory in bytes, including the working folder."""
    disk: int = 512 * MB
    """The limit of the working folder in bytes, and also of /tmp."""
    processes: int = 256
    """The limit of processes and threads of all programs together."""
    lifetime: float = 3600.0
    """The container ends after this time. It also ends when this process has ended."""
    warm: int = 0
    """The number of containers that are started before a sandbox needs them."""
    request_timeout: float = 60.0
    """The timeout of a call to the daemon."""
    snapshot_bytes: int = 256 * MB
    """The largest size of a snapshot, in bytes."""
    python: str = "python3"
    """The Python interpreter of the image; empty if it has none."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the programs."""

    def __post_init__(self) -> None:
        if not LABEL.fullmatch(self.server_id):
            raise ValueError(f"server_id: {self.server_id!r:.80} is not 1 to 63 letters, digits, -_.")
        if not self.image:
            raise ValueError("image: is empty")
        if self.folder and (not self.folder.startswith("/") or self.folder.rstrip("/") in ("", "/tmp")):  # noqa: S108
            raise ValueError(f"folder: {self.folder!r} is not an absolute path besides / and /tmp")
        if not self.writable and not self.folder:
            raise ValueError("folder: is empty; the folder of the image needs writable=True")
        if not self.writable and not (isinstance(self.user, int) and self.user > 0):
            raise ValueError("user: is not above 0; root, a name, and the user of the image need writable=True")
        if self.network != NO_NETWORK and self.hosts:
            raise ValueError(f"network: is {self.network}, so `hosts` would limit nothing")
        for address in self.reach:
            if not ADDRESS.fullmatch(address):
                raise ValueError(f"reach: {address!r:.80} is not HOST:PORT")
        for host in self.hosts:
            if not HOST.fullmatch(host):
                raise ValueError(f"hosts: {host!r:.80} is not the name of a host, such as pypi.org or *.example.com")
        for name in ("memory", "disk", "processes", "lifetime", "request_timeout", "snapshot_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is less than 1")
        if not self.cpus > 0:
            raise ValueError(f"cpus: {self.cpus} is not above 0")

    @property
    def isolation(self) -> Isolation:
        """Return the isolation that containers have."""
        missing: dict[Protection, str] = {}
        if self.network != NO_NETWORK:
            missing[Protection.NETWORK] = f"the container is in the network {self.network}"
        elif self.hosts or self.reach:
            missing[Protection.NETWORK] = f"the container reaches {', '.join([*self.reach, *self.hosts])}, nothing else"
        if not isinstance(self.user, int) or not self.user:
            missing[Protection.USER] = "programs run as root of the container, or as the user of the image"
        if self.writable:
            missing[Protection.FILES] = "programs can change the files of their container"
            missing[Protection.LIMITS] = "what they write to its disk has no limit"
        return Isolation("docker", frozenset(set(Protection) - missing.keys()), "; ".join(missing.values()))


def container_body(config: DockerConfig, process: str, rollout: str, sockets: str = "") -> dict[str, Any]:
    """Return the request that creates a container.

    Args:
        config: The configuration.
        process: The process of the server, for a label.
        rollout: The rollout, for a label.
        sockets: The folder with the sockets to the outside, if there are any.
    """
    variables = {} if config.writable else {"HOME": config.folder, "TMPDIR": "/tmp"}  # noqa: S108
    if config.hosts:
        proxy = f"http://127.0.0.1:{PROXY_PORT}"
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
        variables |= proxies | dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
    variables |= config.environment
    in_memory = f"rw,exec,nosuid,nodev,size={config.disk},uid={config.user},gid={config.user},mode=0755"
    mounts = {FOLDER: sockets, **config.mounts} if sockets else config.mounts
    body: dict[str, Any] = {
        "Image": config.image,
        # The first process waits for the end of its input, which comes when this process of the server ends. Docker's
        # init collects the processes that lose their parent.
        "Entrypoint": ["timeout", str(int(config.lifetime)), "cat"],
        "Cmd": [],
        "OpenStdin": True,
        "StdinOnce": True,
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Labels": {SERVER_LABEL: config.server_id, PROCESS_LABEL: process, ROLLOUT_LABEL: rollout},
        "NetworkDisabled": config.network == NO_NETWORK,
        "HostConfig": {
            "AutoRemove": True,
            "NetworkMode": config.network,
            "Init": True,
            "ReadonlyRootfs": not config.writable,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": config.processes,
            "Memory": config.memory,
            "MemorySwap": config.memory,
            "NanoCpus": int(config.cpus * 1e9),
            "Binds": [f"{there}:{here}:ro" for here, there in mounts.items()],
            "LogConfig": {"Type": "none"},
        },
    }
    if config.folder:
        body["WorkingDir"] = config.folder
    if config.user is not None:
        body["User"] = f"{config.user}:{config.user}" if isinstance(config.user, int) else config.user
    if config.writable:
        body["HostConfig"]["CapAdd"] = OF_ROOT  # useless for other users, who cannot get new privileges
    else:
        body["HostConfig"]["Tmpfs"] = {config.folder: in_memory, "/tmp": in_memory}  # noqa: S108
    return body
