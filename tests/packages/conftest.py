"""The wheel, and environments that have it and nothing of the checkout."""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-release" / "bin"
PYTHONS = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
"""The versions that the package promises."""
Make = Callable[..., Path]


def call(*command: object, **options) -> str:
    """Run a command, and return what it prints. Raises AssertionError with all output if it fails."""
    options.setdefault("timeout", 600)
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def clean() -> dict[str, str]:
    """Return the variables of a person who has only installed the wheel."""
    return {
        name: value for name, value in os.environ.items() if not re.match("OSMOSIS_|PYTHON|PYTEST|VIRTUAL_ENV", name)
    }


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


def build(tree: Path, out: Path) -> Path:
    """Build the wheel of a tree."""
    call(TOOLS / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=tree)
    (path,) = out.glob("*.whl")
    return path


def interpreter(version: str) -> str | None:
    """Return the path of a Python of this machine: on PATH, or one of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in (f"python{version}", *sorted(pyenv.glob(f"{version}.*/bin/python3"), reverse=True)):
        with contextlib.suppress(OSError):  # a shim of pyenv runs nothing if the version is not chosen
            told = subprocess.run([path, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
            if told.returncode == 0:
                return told.stdout.strip()
    return None


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes an environment with requirements, and returns its Python. Skips the test without such a Python."""

    def make(python: str, *requirements: str, constrained: bool = True) -> Path:
        folder = tmp_path_factory.mktemp("environment") / "venv"
        found = interpreter(python)
        if found is None:
            pytest.skip(f"there is no Python {python} on this machine")
        call(TOOLS / "uv", "venv", "--quiet", "--python", found, folder)
        constraints = ["--constraint", ROOT / "constraints.txt"] if constrained else []
        install = [TOOLS / "uv", "pip", "install", "--quiet", "--python", folder / "bin" / "python", *constraints]
        call(*install, *requirements)
        return folder / "bin" / "python"

    return make


def hidden(command: list[str]) -> list[str]:
    """Return a command that sees an empty folder in place of the checkout, where bubblewrap is at hand."""
    if shutil.which("bwrap") is None:
        return command
    programs = ROOT / ".venv-programs"
    kept = ["--ro-bind", str(programs), str(programs)] if programs.exists() else []
    return ["bwrap", "--dev-bind", "/", "/", "--tmpfs", str(ROOT), *kept, *command]
