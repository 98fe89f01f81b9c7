"""Installs a program of versions.txt: python -m tests.coding_programs.install NAME FOLDER.

Links its commands into FOLDER/bin.
"""

import os
import subprocess
import sys
from pathlib import Path

VERSIONS = Path(__file__).with_name("versions.txt")


def versions() -> dict[str, tuple[str, str, str]]:
    """Return the installer, the package and the version of each program."""
    rows = (line.split() for line in VERSIONS.read_text().splitlines())
    return {name: (installer, package, version) for name, installer, package, version in rows}


def install(name: str, folder: Path) -> None:
    """Install a program into a folder of its own."""
    installer, package, version = versions()[name]
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    if installer == "npm":
        options = ["--silent", "--no-fund", "--no-audit", "--prefix", str(home)]
        subprocess.run(["npm", "install", *options, f"{package}@{version}"], check=True)
        commands = home / "node_modules" / ".bin"
    else:
        subprocess.run([installer, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"{package}=={version}"], check=True)
        commands = home / "bin"
    links = folder / "bin"
    links.mkdir(exist_ok=True)
    for command in commands.iterdir():
        link = links / command.name
        if command.name.split(".")[0] not in ("python", "python3", "pip", "activate", "node") and not link.exists():
            os.symlink(command.resolve() if installer == "npm" else command, link)


if __name__ == "__main__":
    install(sys.argv[1], Path(sys.argv[2]).absolute())
