"""Builds the clients of clients/ as their READMEs say, in a copy of the folder. Each function returns a command.

A build stays in build/clients until its sources change, so the tests of several commands share it.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.processes import ROOT

CLIENTS = ROOT / "clients"
BUF = str(Path(sys.executable).with_name("buf"))
GO_PACKAGES = (
    "protoc-gen-go protoc-gen-go-grpc golang-go"
    " golang-google-grpc-dev golang-google-genproto-dev golang-google-protobuf-dev"
)
"""The packages of Debian 12 that the Go trainer needs."""
GOCODE = Path("/usr/share/gocode")
"""The GOPATH of Debian's Go packages."""


def typescript(folder: Path) -> list[str]:
    """Installs the packages, generates the stubs, and compiles with strict types."""
    need(["node", "npm"], "install Node 20 or newer")
    client = copy("typescript", folder)
    run("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", cwd=client)
    run("npm", "run", "generate", cwd=client)
    run("npm", "run", "build", cwd=client)
    return ["node", str(client / "build" / "examples")]


def go(folder: Path) -> list[str]:
    """Generates the stubs, and vets and compiles without modules, with Debian's packages."""
    need(["go", "protoc-gen-go", "protoc-gen-go-grpc"], f"apt-get install {GO_PACKAGES}")
    if not all((GOCODE / "src" / "google.golang.org" / name).exists() for name in ("genproto", "grpc", "protobuf")):
        pytest.skip(f"Debian's Go packages not found: apt-get install {GO_PACKAGES}")
    client = copy("go", folder)
    run(BUF, "generate", cwd=client)
    (folder / "path" / "src").mkdir(parents=True)
    (folder / "path" / "src" / "osmosis").symlink_to(client)
    env = {"GO111MODULE": "off", "GOFLAGS": "-tags=debian", "GOPATH": f"{folder / 'path'}:{GOCODE}"}
    libraries = ["osmosis/debian", "osmosis/wire", "osmosis/trainer"]
    programs = ["osmosis/cmd/calculator", "osmosis/cmd/trainer"]
    run("go", "vet", *libraries, *programs, cwd=folder, env=env)
    for package in programs:
        run("go", "build", "-o", str(folder / Path(package).name), package, cwd=folder, env=env)
    return [str(folder)]


def betterproto2(folder: Path) -> list[str]:
    """Makes an environment with betterproto2, and generates its stubs."""
    client = copy("betterproto2", folder)
    programs = client / "venv" / "bin"
    run(sys.executable, "-m", "venv", str(client / "venv"), cwd=client)
    pip = [str(programs / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "-r", "requirements.txt", cwd=client)
    path = f"{programs}:{os.environ['PATH']}"  # the plugin, and ruff, which the plugin runs
    run(BUF, "generate", cwd=client, env={"PATH": path})
    return [str(programs / "python"), str(client)]


BUILDS: Mapping[str, tuple[Callable[[Path], list[str]], str]] = {
    "typescript": (typescript, ".js"),
    "go": (go, ""),
    "betterproto2": (betterproto2, ".py"),
}
"""For each language: its build, and how the names of its programs end."""


BUILT = ROOT / "build" / "clients"
"""Has one folder for each client, and a file NAME.json with the digest of its sources and its command."""
NOT_SOURCES = ("node_modules", "gen", "build", "rollout", "venv", "__pycache__")


def program(language: str) -> Callable[[str], list[str]]:
    """Builds a client, if it is not built yet.

    Returns a function from the name of a program, such as `calculator`, to its command.
    """
    build, suffix = BUILDS[language]
    folder, record = BUILT / language, BUILT / f"{language}.json"
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / f"{language}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of pytest wait for the build
        digest = _digest(language)
        if not record.exists() or json.loads(record.read_text())["sources"] != digest:
            record.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            record.write_text(json.dumps({"sources": digest, "command": build(folder)}))
        *interpreter, programs = json.loads(record.read_text())["command"]
    return lambda name: [*interpreter, f"{programs}/{name}{suffix}"]


def _digest(language: str) -> str:
    """Returns a digest of the client, the proto files, this file, and this Python."""
    digest = hashlib.sha256(f"{sys.version} {ROOT}".encode())
    for root in (CLIENTS / language, ROOT / "proto", Path(__file__)):
        for path in sorted(root.rglob("*") if root.is_dir() else [root]):
            if path.is_file() and not set(path.relative_to(ROOT).parts) & set(NOT_SOURCES):
                digest.update(f"{path} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()


def copy(language: str, folder: Path) -> Path:
    """Copies a client, without what was built in it, and the proto files. Returns the folder of the client."""
    shutil.copytree(ROOT / "proto", folder / "proto")
    built = shutil.ignore_patterns(*NOT_SOURCES)
    return Path(shutil.copytree(CLIENTS / language, folder / "clients" / language, ignore=built))


def need(programs: Sequence[str], install: str) -> None:
    """Skips the test if a program is missing."""
    missing = [each for each in programs if shutil.which(each) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found: {install}")


def run(*command: str, cwd: Path, env: Mapping[str, str] | None = None) -> None:
    """Runs a command at low priority. Raises AssertionError with all output if it fails."""
    low = ["nice", "-n", "5", *command]
    done = subprocess.run(low, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
