"""Every kind of sandbox, for tests that all of them pass, and the places where they differ by design."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from osmosis_grpc.tools.sandbox import LocalSandbox, Protection, Sandbox, SandboxLimits
from osmosis_grpc.tools.sandbox.methods import METHODS
from tests.docker_daemon import IMAGE
from tests.tools.sandbox.conftest import usable

LOCAL = [method.name for method in METHODS]
DOCKER, PODS = "docker", "pods"
SNAPSHOT_BYTES = 1_000_000
"""The most bytes of a snapshot of a small sandbox."""


@dataclass(frozen=True)
class Differences:
    """What differs by design. docs/sandbox.md says it, too."""

    variables: frozenset[str]
    """The variables of every program."""
    short: float
    """A time limit within which a program begins."""
    mode_of_replaced: str
    """The mode of a file with 4550 after it was replaced."""
    names_that_are_no_text: bool
    """Whether files are read whose names are no UTF-8."""
    copies_pipes: bool
    """Whether a snapshot copies pipes."""
    copies_unreadable: bool
    """Whether a snapshot copies what the programs cannot read."""
    ends_without_variables: bool
    """Whether a process without variables ends when no other program runs. Otherwise it ends with the sandbox."""


_LOCAL = Differences(
    variables=frozenset({"PATH", "HOME", "LANG", "TMPDIR", "OSMOSIS_PROCESS_MARKER"}),
    short=0.5,
    mode_of_replaced="550",
    names_that_are_no_text=True,
    copies_pipes=False,
    copies_unreadable=True,
    ends_without_variables=True,
)
_CONTAINER = Differences(
    variables=frozenset({"PATH", "HOME", "TMPDIR", "HOSTNAME", "OSMOSIS_RUN"}),
    short=2.0,
    mode_of_replaced="4550",
    names_that_are_no_text=False,
    copies_pipes=True,
    copies_unreadable=False,
    ends_without_variables=False,
)
# The API server of the tests marks the processes of its pods, names no host, and runs them as root, who reads all.
_POD = replace(
    _CONTAINER, variables=_CONTAINER.variables - {"HOSTNAME"} | {"OSMOSIS_PROCESS_MARKER"}, copies_unreadable=True
)


@dataclass(frozen=True)
class Kind:
    """A kind of sandbox, whose machine is ready."""

    name: str
    differs: Differences
    sandbox: Callable[..., Sandbox]
    """Makes a sandbox, not started. `require` is as in LocalSandbox."""
    small: Callable[[], Sandbox]
    """Makes one whose snapshots have at most SNAPSHOT_BYTES."""
    filled: Callable[[], Sandbox]
    """Makes one whose working folder is that of the image, with files, where there is an image."""

    @property
    def machine_ends_processes(self) -> bool:
        """Whether the end of a sandbox ends every process. The API server of the tests has no containers."""
        return self.name == DOCKER

    def ends_without_variables(self, box: Sandbox) -> bool:
        """Whether a process without variables ends when no other program runs."""
        apart = box.isolation.protections & {Protection.USER, Protection.PROCESSES}
        return self.differs.ends_without_variables and bool(apart)


@contextlib.asynccontextmanager
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Kind]:
    """Open the kind that is the parameter of a fixture. Skips where it does not work."""
    name = request.param
    if name in LOCAL:
        usable(name)

        def local(**options: Any) -> LocalSandbox:
            return LocalSandbox(method=name, **options)

        limits = SandboxLimits(folder_bytes=SNAPSHOT_BYTES)
        yield Kind(name, _LOCAL, local, lambda: local(limits=limits), local)
    elif name == DOCKER:
        from osmosis_grpc.tools.docker import DockerConfig, DockerMachine

        url = request.getfixturevalue("daemon")
        config = DockerConfig(server_id="every", image=IMAGE, url=url)
        small = replace(config, snapshot_bytes=SNAPSHOT_BYTES)
        filled = replace(config, folder="/etc/skel", user=0, writable=True)
        async with DockerMachine(config) as machine:
            yield Kind(
                name,
                _CONTAINER,
                machine.sandbox,
                lambda: machine.sandbox(config=small),
                lambda: machine.sandbox(config=filled),
            )
    else:
        pytest.importorskip("kubernetes_asyncio")
        from osmosis_grpc.tools.kubernetes import KubernetesCluster, KubernetesConfig
        from tests.tools.kubernetes.api_server import FakeApi

        usable("bubblewrap")
        async with FakeApi() as api:
            path = api.kubeconfig(request.getfixturevalue("tmp_path"))
            pods = KubernetesConfig(server_id="every", image="python:3.12", kubeconfig=path)
            small_pods = replace(pods, snapshot_bytes=SNAPSHOT_BYTES)
            async with KubernetesCluster(pods) as cluster:
                yield Kind(name, _POD, cluster.sandbox, lambda: cluster.sandbox(config=small_pods), cluster.sandbox)
