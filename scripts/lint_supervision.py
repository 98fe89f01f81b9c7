"""Finds background work that no Supervisor owns: `python scripts/lint_supervision.py` in `make check`.

Everywhere but in osmosis_grpc/supervise it forbids create_task, ensure_future, task groups, threads, timers of threads,
and the event loop's own call_later and call_at. Allowed are call_later of a supervisor and of osmosis_grpc.supervise.
The reaper is a program of its own that imports nothing of the package, so it is left out.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("osmosis_grpc", "gateway/osmosis_gateway")
LEFT_OUT = ("osmosis_grpc/supervise/", "osmosis_grpc/protocol/_gen/", "osmosis_grpc/tools/reaper.py")
TASKS = {"create_task", "ensure_future", "create_task_group", "TaskGroup", "start_soon", "start_new_thread"}
"""Names that are not used at all."""
THREADS = {"Thread", "Timer", "ThreadPoolExecutor"}
"""Classes that are neither called nor subclassed; annotations may name them."""
TIMERS = {"call_later", "call_at"}
"""Methods of a supervisor or functions of osmosis_grpc.supervise only."""


def problems(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each forbidden use in a module."""
    tree = ast.parse(source)
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "osmosis_grpc.supervise"
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in TASKS)
        elif isinstance(node, ast.Attribute):
            if node.attr in TASKS or (node.attr in TIMERS and not _is_supervisor(node.value)):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TIMERS - ours:
            yield node.lineno, node.func.id
        for made in [node.func] if isinstance(node, ast.Call) else getattr(node, "bases", []):
            if _name(made) in THREADS:
                yield made.lineno, _name(made)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_supervisor(node: ast.expr) -> bool:
    return _name(node).lstrip("_") in ("supervisor", "supervise")


def main() -> int:
    """Print every problem. Returns how many there are, at most 1."""
    found = 0
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            shown = path.relative_to(ROOT).as_posix()
            if not shown.startswith(LEFT_OUT):
                for line, name in problems(path.read_text()):
                    found = 1
                    print(f"{shown}:{line}: {name} starts work that nothing watches: use osmosis_grpc.supervise")
    return found


if __name__ == "__main__":
    sys.exit(main())
