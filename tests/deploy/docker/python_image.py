"""A stand-in for the base image of deploy/docker/Dockerfile, because no registry may be within reach."""

import os
import shutil
import ssl
import subprocess
from pathlib import Path

from tests.processes import ROOT

NAME = "python:3.12-slim"
ROOT_FILES = ROOT / "build" / "docker" / "python.tar"
PACKAGES = "python3,python3-venv,python-is-python3"


def root_files() -> Path:
    """Make a Debian with Python, which takes a minute, once."""
    if not ROOT_FILES.exists():
        ROOT_FILES.parent.mkdir(parents=True, exist_ok=True)
        root, made = ROOT_FILES.with_suffix(".root"), ROOT_FILES.with_suffix(".new")
        shutil.rmtree(root, ignore_errors=True)
        bootstrap = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)]
        subprocess.run(bootstrap, check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(root / "var" / "lib" / "apt" / "lists")
        subprocess.run(["tar", "-C", str(root), "-cf", str(made), "--exclude=*.deb", "."], check=True)
        made.rename(ROOT_FILES)
        shutil.rmtree(root)
    return ROOT_FILES


def make(docker, folder: Path) -> None:
    """Give a daemon the image. Its pip uses the index and the certificates of this machine."""
    docker("import", root_files(), "osmosis-test-python")
    asked = subprocess.run(["pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False)
    index = os.environ.get("PIP_INDEX_URL") or asked.stdout.strip()
    own = ssl.get_default_verify_paths().cafile
    certificates = os.environ.get("PIP_CERT") or own or "/etc/ssl/certs/ca-certificates.crt"
    shutil.copy(certificates, folder / "ca.crt")
    lines = ["[global]", "cert = /etc/pip-ca.crt", *([f"index-url = {index}"] if index else [])]
    (folder / "pip.conf").write_text("\n".join(lines))
    copies = "COPY ca.crt /etc/pip-ca.crt\nCOPY pip.conf /etc/pip.conf\n"
    (folder / "Dockerfile").write_text(f"FROM osmosis-test-python\n{copies}")
    docker("build", "-t", NAME, folder)
