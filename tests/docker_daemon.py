"""A Docker daemon of its own for the tests, and a base image of Debian."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.waiting import wait_until

BASE = Path(__file__).parents[1] / "build" / "docker" / "base.tar"
IMAGE = "osmosis-test-base"


def base_image():
    """Make the root file system of the image, which takes half a minute, once."""
    if BASE.exists():
        return
    BASE.parent.mkdir(parents=True, exist_ok=True)
    root = BASE.with_suffix(".root")
    shutil.rmtree(root, ignore_errors=True)
    bootstrap = ["debootstrap", "--variant=minbase", "--include=python3", "bookworm", str(root)]
    subprocess.run(bootstrap, check=True, stdout=subprocess.DEVNULL)
    made = BASE.with_suffix(".new")
    subprocess.run(["tar", "-C", str(root), "-cf", str(made), "."], check=True)
    made.rename(BASE)
    shutil.rmtree(root)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory):
    """The address of a daemon, which has the image. Skips where no daemon can be started."""
    missing = [name for name in ("dockerd", "docker", "debootstrap") if not shutil.which(name)]
    if missing or os.getuid() != 0:
        pytest.skip(f"a Docker daemon needs root and {', '.join(missing) or 'its programs'}")
    base_image()
    folder = tmp_path_factory.mktemp("docker")
    url = f"unix://{folder}/docker.sock"
    command = ["dockerd", "-H", url, "--data-root", folder / "data", "--exec-root", folder / "exec"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*map(str, command), "-p", str(folder / "pid")], stdout=log, stderr=log)
    try:
        docker = ["docker", "-H", url]

        def answers():
            if process.poll() is not None:
                pytest.skip(f"the daemon cannot run here: {(folder / 'log').read_text()[-500:]}")
            return subprocess.run([*docker, "info"], capture_output=True, check=False).returncode == 0

        wait_until(answers, timeout=60)
        subprocess.run([*docker, "import", str(BASE), IMAGE], check=True, stdout=subprocess.DEVNULL)
        yield url
    finally:
        process.terminate()
        process.wait(30)
        for line in Path("/proc/self/mounts").read_text().splitlines():  # dockerd leaves some
            if (mount := line.split(" ")[1]).startswith(str(folder)):
                subprocess.run(["umount", "--lazy", mount], check=False)
