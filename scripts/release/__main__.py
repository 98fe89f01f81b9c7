"""Builds, checks, and prints what a release would publish: python -m scripts.release --out dist."""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from scripts.release import client_packages, python_packages
from scripts.release.contents import faults, names
from scripts.release.sources import ROOT, VERSION, changed, copy, run


def main() -> int:
    """Build what is asked for, and return the exit code: 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the packages; it is emptied first")
    parser.add_argument("--repository", default="", help="URL of the repository, for the links of the package's page")
    parser.add_argument("--go-module", default="", help="name of the Go module, such as example.com/osmosis")
    parser.add_argument("--only", choices=("python", "npm", "go"), action="append", help="build only these")
    asked = parser.parse_args()
    out = asked.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    kinds = asked.only or ["python", "npm", "go"]
    found: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="osmosis-release-") as name:
        room = Path(name)
        if "python" in kinds:
            found |= _python(room, out, asked.repository)
        if "npm" in kinds:
            found["npm"] = _twice(room, "npm", out, client_packages.npm)
        if "go" in kinds:
            module = asked.go_module or client_packages.GO_MODULE
            found["go"] = _twice(room, "go", out, lambda tree, to: client_packages.go(tree, to, module))
    wrong = [fault for kind, path in found.items() for fault in faults(names(path, kind), kind)]
    if "wheel" in found:
        wrong += _tried(found["wheel"])
    _report(found, asked.repository, asked.go_module)
    for fault in wrong:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if wrong else 0


def _python(room: Path, out: Path, repository: str) -> dict[str, Path]:
    built = python_packages.build(copy(room / "tree", repository), out)
    tree = python_packages.unpack(built["sdist"], room / "sdist")
    again = python_packages.build(tree, room / "again")
    for kind, path in built.items():
        _equal(path, again[kind])
    python_packages.check(built["wheel"], built["sdist"])
    return built


def _twice(room: Path, kind: str, out: Path, build: Callable[[Path, Path], Path]) -> Path:
    (room / f"{kind}-again").mkdir()
    again = build(copy(room / f"{kind}-1"), room / f"{kind}-again")
    path = build(copy(room / f"{kind}-2"), out)
    _equal(path, again)
    return path


def _equal(one: Path, other: Path) -> None:
    if one.read_bytes() != other.read_bytes():
        raise SystemExit(f"{one.name} differs when it is built again: compare {one} with a second build")


def _tried(wheel: Path) -> list[str]:
    """Run the demo of the wheel in an empty folder, in an environment that uvx makes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python_packages.TOOLS / "uvx"), "--from", f"{wheel}[server]", "osmosis-grpc", "demo", "--json"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("OSMOSIS_", "PYTHON"))}
        options = {"cwd": folder, "env": clean, "capture_output": True, "text": True, "check": False}
        done = subprocess.run(command, **options)  # type: ignore[call-overload]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    completed = sum(row.get("status") == "COMPLETED" for row in rows)
    return [] if (done.returncode, completed) == (0, 8) else [f"the demo of the wheel failed: {done.stderr}"]


def _report(found: dict[str, Path], repository: str, go_module: str) -> None:
    """Print each package, and the commands that would publish them."""
    for kind, path in found.items():
        data = path.read_bytes()
        print(f"{kind:<6} {path.name}  {len(data):,} bytes  {len(names(path, kind))} files")
        print(f"       sha256 {hashlib.sha256(data).hexdigest()}")
    print("\nEach was built twice, with equal bytes. Nothing is published. To publish:\n")
    commit = run("git", "rev-parse", "--short", "HEAD", cwd=ROOT).strip()
    if changed():
        print("  # files differ from the last commit: commit them, and run this again")
    print(f"  git tag v{VERSION} {commit} && git push origin v{VERSION}")
    if "wheel" in found:
        print(f"  twine upload {found['wheel']} {found['sdist']}")
        if not repository:
            print("  # without --repository, the README on the index has no images, and its links lead nowhere")
    if "npm" in found:
        print(f"  npm publish {found['npm']}")
    if "go" in found:
        if not go_module:
            print(f"  # {client_packages.GO_MODULE} is a stand-in: name the Go module with --go-module")
        print(f"  # Go: unpack {found['go']} into the repository of the module, and tag v{VERSION} there")


if __name__ == "__main__":
    sys.exit(main())
