"""Builds the wheel and the sdist: twice, from the tree and from the sdist. Both must give the same bytes."""

import os
import sys
import tarfile
from pathlib import Path

from scripts.release.sources import run

TOOLS = Path(sys.executable).parent


def build(tree: Path, out: Path) -> dict[str, Path]:
    """Build the wheel and the sdist of a tree."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", out, cwd=tree)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist, with the modes that another user's umask gives, and return the folder of its tree."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    for path in tree.rglob("*"):
        os.chmod(path, 0o700 if path.is_dir() else 0o600)
    return tree


def check(wheel: Path, sdist: Path) -> None:
    """Let twine check the metadata."""
    run(TOOLS / "twine", "check", "--strict", wheel, sdist, cwd=wheel.parent)
