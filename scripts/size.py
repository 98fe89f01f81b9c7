"""Counts the hand-written lines of the product and of the tests; with --check, fails above the limits."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {"product": 72_000, "tests": 90_000}
FOLDERS = {"product": ("osmosis_grpc", "gateway"), "tests": ("tests",)}


def lines(*folders: str) -> int:
    """Return the lines of the Python files below some folders, comments and blank lines included, without stubs."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, check=True, capture_output=True, text=True)
    files = [name for name in listed.stdout.splitlines() if name.endswith(".py")]
    written = [name for name in files if "/_gen/" not in name and "_pb2" not in name]
    return sum((ROOT / name).read_bytes().count(b"\n") for name in written if (ROOT / name).exists())


def main() -> int:
    """Print both sizes. Returns 1 if `--check` is set and a size is above its limit."""
    sizes = {name: lines(*folders) for name, folders in FOLDERS.items()}
    for name, size in sizes.items():
        print(f"{name}: {size:,} lines, of at most {LIMITS[name]:,}")
    return int("--check" in sys.argv[1:] and any(size > LIMITS[name] for name, size in sizes.items()))


if __name__ == "__main__":
    sys.exit(main())
