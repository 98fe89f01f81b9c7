"""Installs a program or a framework of versions.txt: python -m tests.coding_programs.install NAME FOLDER.

Links the command of a program into FOLDER/bin.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

VERSIONS = Path(__file__).with_name("versions.txt")
FOLDER = Path(__file__).parents[2] / ".venv-programs"
"""Where make installs them."""


class Version(NamedTuple):
    """A line of the file."""

    command: str
    """The command of a program; `-` for a framework."""
    installer: str
    package: str
    version: str
    more: tuple[str, ...] = ()
    """Other packages that a framework needs."""


def versions(*, frameworks: bool = False) -> dict[str, Version]:
    """Return the version of each program, or of each framework, that the tests run."""
    rows = {}
    for line in VERSIONS.read_text().splitlines():
        name, command, installer, package, version, *more = line.split()
        if (command == "-") == frameworks:
            rows[name] = Version(command, installer, package, version, tuple(more))
    return rows


def asked_for() -> list[str]:
    """Return the names that were given to make."""
    return os.environ.get("OSMOSIS_TEST_PROGRAMS", "").split()


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a test with a program or a framework."""
    return [] if name in asked_for() else [pytest.mark.skip("PROGRAMS of make does not name it")]


def install(name: str, folder: Path) -> None:
    """Install a program or a framework into a folder of its own."""
    known = versions() | versions(frameworks=True)
    if name not in known:
        sys.exit(f"{name} has no line in {VERSIONS.name}: NAME COMMAND INSTALLER PACKAGE VERSION [MORE PACKAGES]")
    command, installer, package, version, more = known[name]
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    if installer == "npm":
        options = ["--silent", "--no-fund", "--no-audit", "--prefix", str(home)]
        subprocess.run(["npm", "install", *options, f"{package}@{version}"], check=True)
        program = home / "node_modules" / ".bin" / command
    else:
        subprocess.run([installer, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"{package}=={version}", *more], check=True)
        program = home / "bin" / command
    if command == "-":
        return
    links = folder / "bin"
    links.mkdir(exist_ok=True)
    (links / command).unlink(missing_ok=True)
    (links / command).symlink_to(program)


if __name__ == "__main__":
    install(sys.argv[1], Path(sys.argv[2]).absolute())
