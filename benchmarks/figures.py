"""Shared by the command lines of the benchmarks: options, progress, figures, exit codes.

Exit codes: 0 measured, 1 the run failed (rollouts lost, not COMPLETED, not trainable), 2 wrong usage.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import sys
from collections.abc import Callable, Coroutine
from importlib import metadata
from typing import Any

from osmosis_grpc.protocol.errors import CallError


class Broken(Exception):
    """The run failed: its figures are invalid."""


class Parser(argparse.ArgumentParser):
    """The parser of a benchmark, with --json."""

    def __init__(self, doc: str | None) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--json", action="store_true", help="print one JSON line")

    def amounts(self, **defaults: float) -> None:
        """Add an option for each amount. Its value is greater than 0, and of its default's type."""
        for name, default in defaults.items():
            self.add_argument(
                f"--{name.replace('_', '-')}",
                type=_positive(type(default)),
                default=default,
                metavar="N",
                help=f"[{default:g}]",
            )


def run(doc: str | None, measure: Callable[..., Coroutine[Any, Any, dict[str, Any]]], **defaults: float) -> None:
    """Run a benchmark whose options are amounts, and print its figures. `measure` gets each amount by name."""
    parser = Parser(doc)
    parser.amounts(**defaults)
    given = vars(parser.parse_args())
    as_json = given.pop("json")
    show(measured(measure(**given)), as_json)


def _positive(kind: type[float]) -> Callable[[str], float]:
    def positive(text: str) -> float:
        value = kind(text)
        if value <= 0:
            raise ValueError
        return value

    return positive


def progress(text: str) -> None:
    """Print a line of progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def measured(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Run `work` and return its figures. A failed run, or a refused call, ends the process with exit code 1."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    problems: set[str] = set()
    figures: dict[str, Any] = {}
    try:
        figures = asyncio.run(work)
    except* (Broken, CallError) as broken:
        problems = {f"{type(error).__name__}: {error}" for error in _leaves(broken)}
    for problem in sorted(problems):
        progress(f"went wrong: {problem}")
    if problems:
        sys.exit(1)
    return figures


def machine() -> dict[str, Any]:
    """Return the machine and the relevant versions."""
    versions = {found.name: found.version for found in metadata.distributions()}
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": _processor(),
        "packages": {name: versions.get(name) for name in ("grpcio", "protobuf", "aiohttp", "uvicorn", "numpy")},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def show(figures: dict[str, Any], as_json: bool) -> None:
    """Print figures with the machine. A figure `lost` other than 0 ends the process with exit code 1."""
    figures = figures | {"machine": machine()}
    if as_json:
        print(json.dumps(figures), flush=True)
    else:
        for name, figure in figures.items():
            print(f"{name:28} {figure}")
    if figures.get("lost"):
        progress(f"went wrong: {figures['lost']} rollouts were lost")
        sys.exit(1)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
