"""Installs a program of versions.txt: python -m tests.coding_programs.install NAME FOLDER.

Links its command into FOLDER/bin.
"""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

VERSIONS = Path(__file__).with_name("versions.txt")


class Version(NamedTuple):
    """A line of the file."""

    command: str
    installer: str
    package: str
    version: str


def versions() -> dict[str, Version]:
    """Return the version of each program that the tests run."""
    rows = (line.split() for line in VERSIONS.read_text().splitlines())
    return {name: Version(*rest) for name, *rest in rows}


def install(name: str, folder: Path) -> None:
    """Install a program into a folder of its own."""
    command, installer, package, version = versions()[name]
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    if installer == "npm":
        options = ["--silent", "--no-fund", "--no-audit", "--prefix", str(home)]
        subprocess.run(["npm", "install", *options, f"{package}@{version}"], check=True)
        program = home / "node_modules" / ".bin" / command
    else:
        subprocess.run([installer, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"{package}=={version}"], check=True)
        program = home / "bin" / command
    links = folder / "bin"
    links.mkdir(exist_ok=True)
    (links / command).unlink(missing_ok=True)
    (links / command).symlink_to(program)


if __name__ == "__main__":
    install(sys.argv[1], Path(sys.argv[2]).absolute())
