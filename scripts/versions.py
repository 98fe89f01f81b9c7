"""Run tests on each Python, with the lowest and the newest dependencies, and write the table in docs/deploy.md.

`make test-versions` runs all cases, and `make test-versions CASES="lowest python-3.13"` some of them. A case that was
not run keeps its row. Each case has an environment of its own in build/versions, which is deleted at its end.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "deploy.md"
FOLDER = ROOT / "build" / "versions"
UV = Path(sys.executable).parent / "uv"
RUNTIME = ("server", "view", "policies", "parquet", "query", "agentic", "conformance", "otel")
"""The extras that the tests need."""
TOOLS = (
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "httpx",
    "trustme",
    "jsonschema",
    "jsonschema-rs",
    "buf-bin",
    "packaging",
)
"""What else they need: the newest that fit."""
TESTS = (
    "tests/agent",
    "tests/engine",
    "tests/network",
    "tests/policies",
    "tests/protocol",
    "tests/server",
    "tests/settings",
    "tests/storage",
    "tests/trainer",
)
_TABLE = re.compile(r"(?<=<!-- begin versions: make test-versions -->\n).*?(?=<!-- end versions -->)", re.S)
_ROW = re.compile(r"^\| `([^`]+)` \|.*$", re.M)


class Case(NamedTuple):
    """An environment: a Python, and what it has."""

    python: str
    dependencies: str
    """pinned, lowest or newest."""
    instead: Mapping[str, str] = {}
    """Other versions than the pinned ones."""


CASES = {
    **{f"python-{version}": Case(version, "pinned") for version in ("3.11", "3.12", "3.13")},
    "lowest": Case("3.11", "lowest"),
    "newest": Case("3.13", "newest"),
    "protobuf-6.31": Case("3.12", "pinned", {"protobuf": "6.31.1", "grpcio": "1.74.0"}),
    "protobuf-6.33": Case("3.12", "pinned", {"protobuf": "6.33.6"}),
    "grpcio-1.74": Case("3.13", "pinned", {"grpcio": "1.74.0", "protobuf": "6.33.6"}),
}
SATELLITES = ("googleapis-common-protos", "grpcio-health-checking", "grpcio-reflection", "grpcio-testing")
"""Packages whose versions need those of grpcio and protobuf; a case with another one of these leaves them free."""


SHOWN = """import platform, grpc, google.protobuf
print(platform.python_version(), grpc.__version__, google.protobuf.__version__)"""
"""What the table shows of an environment."""


def run(*command: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository."""
    return subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=check)


def constraints(case: Case, folder: Path) -> Sequence[object]:
    """Return the options of pip that choose the versions of a case."""
    path = folder / "constraints.txt"
    if case.dependencies == "newest":
        return []
    if case.dependencies == "lowest":
        extras = [word for extra in RUNTIME for word in ("--extra", extra)]
        compiled = run(
            UV, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--resolution", "lowest-direct",
            "--python-version", case.python, *extras, "pyproject.toml",
        )  # fmt: skip
        path.write_text(compiled.stdout)
    else:
        free = {*case.instead, *(SATELLITES if case.instead else ())}
        pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.split("==")[0] not in free]
        path.write_text("\n".join([*pins, *(f"{name}=={version}" for name, version in case.instead.items())]))
    return ["--constraint", path]


def tried(name: str, case: Case, tests: Sequence[str]) -> str:
    """Run the tests of a case, and return its row."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        run(UV, "venv", "--quiet", "--python", interpreter(case.python), folder / "venv")
        python = folder / "venv" / "bin" / "python"
        run(
            UV,
            "pip",
            "install",
            "--quiet",
            "--python",
            python,
            *constraints(case, folder),
            *TOOLS,
            "--editable",
            f".[{','.join(RUNTIME)}]",
        )
        versions = run(python, "-c", SHOWN).stdout.split()
        shown = "default::DeprecationWarning"  # libraries of other versions may warn
        command = ("env", f"PYTHONWARNINGS={shown}", python, "-m", "pytest", "-W", shown)
        done = run(*command, "-q", "-n", "2", "--timeout", "300", *tests, check=False)
    except subprocess.CalledProcessError as error:
        print(error.stdout, error.stderr, file=sys.stderr)
        return f"| `{name}` | {case.python} | | | {case.dependencies} | cannot be installed |"
    finally:
        shutil.rmtree(folder / "venv", ignore_errors=True)
    (folder / "log").write_text(done.stdout + done.stderr)
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", done.stdout.rstrip().rpartition("\n")[2])
    return f"| `{name}` | {' | '.join(versions)} | {case.dependencies} | {', '.join(counts) or 'failed to start'} |"


def interpreter(version: str) -> str:
    """Return a Python of this machine: on PATH, or one of pyenv. Raises SystemExit if there is none."""
    for path in (
        f"python{version}",
        *map(str, sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python3"))),
    ):
        if shutil.which(path) and run(path, "-c", "", check=False).returncode == 0:
            return path
    raise SystemExit(f"there is no Python {version} on this machine")


def main() -> int:
    """Run the cases, write the table, and return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="folders of tests")
    asked = parser.parse_args()
    if unknown := [name for name in asked.cases if name not in CASES]:
        parser.error(f"there is no case {unknown[0]!r}; the cases are {', '.join(CASES)}")
    code = 0
    for name in asked.cases or CASES:
        row = tried(name, CASES[name], asked.tests)
        print(row, flush=True)
        code |= not re.search(r"\| \d+ passed(, \d+ skipped)? \|$", row)
        text = PAGE.read_text()
        rows = {each[1]: each[0] for each in _ROW.finditer(_TABLE.search(text)[0])} | {name: row}  # type: ignore[index]
        head = "| case | Python | grpcio | protobuf | dependencies | tests |\n|---|---|---|---|---|---|\n"
        table = head + "".join(f"{rows[case]}\n" for case in CASES if case in rows)
        PAGE.write_text(_TABLE.sub(lambda _, table=table: table, text))
    return code


if __name__ == "__main__":
    sys.exit(main())
