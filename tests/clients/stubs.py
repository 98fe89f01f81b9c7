"""Makes trainers from the proto files, with the templates that this project ships.

Each function returns the command line of a trainer, for `tests.clients.scenario`.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.clients.scenario import CLIENTS, command, need
from tests.processes import ROOT

BUF = str(Path(sys.executable).with_name("buf"))
GO_PACKAGES = (
    "protoc-gen-go protoc-gen-go-grpc golang-go"
    " golang-google-grpc-dev golang-google-genproto-dev golang-google-protobuf-dev"
)
"""The packages of Debian 12 that the Go trainer needs."""
GOCODE = Path("/usr/share/gocode")
"""The GOPATH of Debian's Go packages."""


async def typescript(folder: Path) -> list[str]:
    """Installs the packages of package.json, makes stubs with buf.gen.ts.yaml and compiles the trainer."""
    need(["node", "npm"], "install Node 20 or newer")
    lay_out(folder, "typescript", "buf.gen.ts.yaml")
    await command("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", cwd=folder)
    await command(BUF, "generate", "--template", "buf.gen.ts.yaml", cwd=folder)
    await command("npx", "--no-install", "tsc", cwd=folder)
    return ["node", "build/trainer.js"]


async def go(folder: Path) -> list[str]:
    """Makes stubs with buf.gen.go.yaml and compiles the trainer without modules, with Debian's packages."""
    need(["go", "protoc-gen-go", "protoc-gen-go-grpc"], f"apt-get install {GO_PACKAGES}")
    if not all((GOCODE / "src" / "google.golang.org" / name).exists() for name in ("genproto", "grpc", "protobuf")):
        pytest.skip(f"Debian's Go packages not found: apt-get install {GO_PACKAGES}")
    lay_out(folder, "go", "buf.gen.go.yaml")
    await command(BUF, "generate", "--template", "buf.gen.go.yaml", cwd=folder)
    source = folder / "path" / "src"
    shutil.copytree(folder / "gen" / "go", source)
    (source / "trainer").mkdir()
    for path in folder.glob("*.go"):
        path.rename(source / "trainer" / path.name)
    env = {"GO111MODULE": "off", "GOFLAGS": "", "GOPATH": f"{folder / 'path'}:{GOCODE}"}
    await command("go", "build", "-o", "program", "trainer", cwd=folder, env=env)
    return [str(folder / "program")]


async def betterproto2(folder: Path) -> list[str]:
    """Makes an environment with betterproto2 and makes its stubs."""
    lay_out(folder, "betterproto2")
    programs = folder / "venv" / "bin"
    await command(sys.executable, "-m", "venv", str(folder / "venv"), cwd=folder)
    pip = [str(programs / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    await command(*pip, "-r", "requirements.txt", cwd=folder)
    path = f"{programs}:{os.environ['PATH']}"  # the plugin, and ruff, which the plugin runs
    await command(BUF, "generate", "--template", "buf.gen.yaml", cwd=folder, env={"PATH": path})
    return [str(programs / "python"), "trainer.py"]


def lay_out(folder: Path, client: str, *templates: str) -> None:
    """Copies the files of a client, the proto files and templates of this project into a folder."""
    shutil.copytree(CLIENTS / client, folder, dirs_exist_ok=True)
    shutil.copytree(ROOT / "proto", folder / "proto")
    for template in templates:
        shutil.copy(ROOT / template, folder)
