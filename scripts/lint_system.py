"""Finds clocks, random numbers and ids that bypass the System: `python scripts/lint_system.py` in `make check`.

A simulation replaces the System of each server and trainer, and the same seed must give the same history. So the
packages below read the time, make random numbers and ids, and use threads through `Supervisor.system` only. SYSTEM, the
System of this machine, is only the default of a parameter there.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("engine", "network", "server", "storage", "supervise", "trainer")
MODULES = {"random", "secrets", "uuid"}
"""Modules of which nothing is used."""
NAMES = {
    "asyncio": {"to_thread"},
    "datetime": {"now", "today", "utcnow"},
    "os": {"getrandom", "urandom"},
    "time": {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"},
}
"""Names that are not used, by the module or class that has them."""
METHODS = {"run_in_executor"}
"""Methods of any object that are not called."""
ALLOWED = {
    "osmosis_grpc/network/call_metrics.py": "measures calls of grpc for the metrics; nothing decides by it",
    "osmosis_grpc/server/tracelog.py": "names the folder of a debug log when serve starts",
    "osmosis_grpc/supervise/daemon_threads.py": "runs functions of agents that block, on real threads",
    "osmosis_grpc/supervise/system.py": "is the System",
    "osmosis_grpc/supervise/unsupervised.py": "starts threads outside of a server or trainer",
    "osmosis_grpc/trainer/progress_bar.py": "draws on the screen",
}
"""Files that may use these names, with the reason."""


def problems(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each forbidden use in a module."""
    tree = ast.parse(source)
    defaults = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.arguments)
        for default in [*node.defaults, *filter(None, node.kw_defaults)]
        for inner in ast.walk(default)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if node.module in MODULES or alias.name in NAMES.get(node.module or "", ()):
                    yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute):
            of = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if node.attr in NAMES.get(of, ()):
                yield node.lineno, f"{of}.{node.attr}"
            elif node.attr in METHODS:
                yield node.lineno, node.attr
        elif isinstance(node, ast.Name) and node.id == "SYSTEM" and id(node) not in defaults:
            yield node.lineno, "SYSTEM"


def main() -> int:
    """Print every problem. Returns how many there are, at most 1."""
    found = 0
    unused = dict(ALLOWED)
    for package in PACKAGES:
        for path in sorted((ROOT / "osmosis_grpc" / package).rglob("*.py")):
            shown = path.relative_to(ROOT).as_posix()
            for line, name in problems(path.read_text()):
                unused.pop(shown, None)
                if shown not in ALLOWED:
                    found = 1
                    print(f"{shown}:{line}: {name} differs between two runs of a seed: use supervisor.system")
    for shown in unused:
        found = 1
        print(f"scripts/lint_system.py: {shown} uses none of the names: remove it from ALLOWED")
    return found


if __name__ == "__main__":
    sys.exit(main())
