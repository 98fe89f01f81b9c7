"""Runs the Osmosis SDK's own tests of rollouts with the import prefix changed: scripts/sdk_own_tests.py FOLDER...

FOLDER is a checkout or an unpacked sdist of the SDK. Its tests are copied into a temporary folder, and the prefix
is changed there, also in texts; nothing is kept. Prints the figures of each file. Without a folder, the sdists
of the package index are downloaded; a version whose sdist has no tests is skipped by name.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSIONS = ("0.2.31", "0.3.2", "0.3.8")
PYTHON = Path(__file__).resolve().parent.parent / "build" / "sdk" / "0.3.8" / "bin" / "python"
COUNTS = re.compile(r"(\d+) (passed|failed|error|errors|skipped)")


def sdists(folder: Path) -> list[Path]:
    """Download and unpack sdists. Returns their folders."""
    python = str(PYTHON if PYTHON.exists() else sys.executable)
    found = []
    for version in VERSIONS:
        command = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*command, "--dest", str(folder), f"osmosis-ai=={version}"], check=False)
        for archive in folder.glob(f"*{version}.tar.gz"):
            with tarfile.open(archive) as opened:
                opened.extractall(folder, filter="data")
            found.append(folder / archive.name.removesuffix(".tar.gz"))
    return found


def tests_of(checkout: Path) -> list[Path]:
    """Return the files with tests of rollouts."""
    return sorted(
        path for path in (checkout / "tests").rglob("test_*.py") if "rollout" in str(path.relative_to(checkout))
    )


def run(checkout: Path) -> None:
    """Run the tests of one checkout, and print the figures."""
    files = tests_of(checkout)
    if not files:
        print(f"{checkout.name}: skipped, it has no tests of rollouts")
        return
    total: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as place:
        copied = Path(place, "tests")
        shutil.copytree(checkout / "tests", copied)
        for path in copied.rglob("*.py"):  # tests patch modules by their names in texts, which migrate leaves
            path.write_text(re.sub(r"\bosmosis_ai\b", "osmosis_grpc", path.read_text()))
        for path in files:
            here = copied / path.relative_to(checkout / "tests")
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "--no-header",
                "-p",
                "no:cacheprovider",
                "-o",
                "asyncio_mode=auto",
            ]
            done = subprocess.run(
                [*command, "--timeout", "60", str(here)],
                check=False, capture_output=True, text=True, cwd=place, env=os.environ | {"HOME": place},
            )  # fmt: skip
            last = (done.stdout.strip().splitlines() or [""])[-1]
            counts = {kind.rstrip("s"): int(count) for count, kind in COUNTS.findall(last)}
            for kind, count in counts.items():
                total[kind] = total.get(kind, 0) + count
            print(f"{checkout.name}: {path.relative_to(checkout)}: {last}")
    print(f"{checkout.name}: {', '.join(f'{count} {kind}' for kind, count in sorted(total.items()))}")


def main() -> None:
    """Run the tests of all folders, or of the sdists."""
    with tempfile.TemporaryDirectory() as folder:
        for checkout in [Path(each) for each in sys.argv[1:]] or sdists(Path(folder)):
            run(checkout)


if __name__ == "__main__":
    main()
