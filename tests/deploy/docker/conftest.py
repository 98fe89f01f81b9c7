"""The image of deploy/docker/Dockerfile, built by the tests' daemon, and containers of it as in docs/deploy.md."""

import json
import os
import subprocess
from contextlib import contextmanager

import pytest

from osmosis_grpc.trainer import Credentials
from tests.deploy.docker import python_image
from tests.ports import quiet_port
from tests.processes import ROOT
from tests.waiting import wait_until

TOKEN = "a-token-of-the-lab-0123456789"
USER = 10001
HARDENED = [
    *("--init", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--stop-timeout", "75", "-e", "OSMOSIS_ROLLOUT_SERVER_DRAIN_TIMEOUT=60"),
    *("-e", "OSMOSIS_ROLLOUT_SERVER_TOKEN_FILE=/secrets/tokens"),
    *("-e", "OSMOSIS_ROLLOUT_CLIENT_TOKEN_FILE=/secrets/lab-token"),
]


@pytest.fixture(scope="session")
def environment(daemon):
    """The environment of programs that use the daemon. Debian's builder is the classic one."""
    return os.environ | {"DOCKER_HOST": daemon, "DOCKER_BUILDKIT": "0"}


@pytest.fixture(scope="session")
def docker(environment):
    """Run a command of docker and return its output."""

    def command(*arguments):
        line = ["docker", *map(str, arguments)]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()

    return command


@pytest.fixture(scope="session")
def image(docker, tmp_path_factory):
    """The name of the image of this tree."""
    python_image.make(docker, tmp_path_factory.mktemp("python"))
    docker("build", "--network", "host", "-f", ROOT / "deploy" / "docker" / "Dockerfile", "-t", "osmosis-grpc", ROOT)
    return "osmosis-grpc"


@pytest.fixture
def secrets(tmp_path):
    """A folder with the tokens, which only the container's user can read."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "tokens").write_text(f"lab={TOKEN}\n")
    (folder / "lab-token").write_text(TOKEN)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o700 if path.is_dir() else 0o400)
        os.chown(path, USER, USER)
    return folder


class Server:
    """Containers of a server, one after the other, with one port and one volume for the state."""

    def __init__(self, docker, image, secrets, name):
        self._docker, self._image, self._secrets, self.name = docker, image, secrets, name
        self.port, self.http_port = quiet_port(), quiet_port()
        self.address = f"127.0.0.1:{self.port}"

    def start(self, *arguments):
        ports = ["-p", f"{self.address}:50051", "-p", f"127.0.0.1:{self.http_port}:9000"]
        volumes = ["-v", f"{self.name}:/var/lib/osmosis", "-v", f"{self._secrets}:/secrets:ro"]
        options = ["-d", "--name", self.name, *HARDENED, *ports, *volumes]
        agent = ["-m", "osmosis_grpc.testing.calculator:agent_loop", "--insecure"]
        self._docker("run", *options, self._image, *agent, *arguments)
        wait_until(self.is_ready, timeout=60)

    def is_ready(self):
        assert self.state()["Running"], self._docker("logs", self.name)
        return self.state()["Health"]["Status"] == "healthy"

    def state(self):
        return json.loads(self._docker("inspect", "-f", "{{json .State}}", self.name))

    def stop(self):
        """Stop the container as an upgrade does, remove it, and return its exit code."""
        self._docker("stop", self.name)
        code = self.state()["ExitCode"]
        self._docker("rm", self.name)
        return code


@pytest.fixture
def new_server(docker, image, secrets):
    """Make a server, whose container and volume are removed afterwards."""

    @contextmanager
    def make(name):
        try:
            yield Server(docker, image, secrets, name)
        finally:
            if docker("ps", "-aq", "--filter", f"name=^{name}$"):
                docker("rm", "-f", name)
            docker("volume", "rm", "-f", name)

    return make


@pytest.fixture
def credentials():
    return Credentials(token=TOKEN)
