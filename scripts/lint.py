"""Finds what this project forbids and ruff has no rule for: `python scripts/lint.py` in `make lint`.

- Background work that no Supervisor owns: tasks, task groups, threads, timers. Use osmosis_grpc.supervise.
- Clocks, random numbers, ids and threads that bypass the System. A simulation replaces the System of each server and
  trainer, and the same seed must give the same history: use `supervisor.system`. SYSTEM, the System of this machine, is
  only the default of a parameter.
- Constructors with more than seven parameters besides configuration, and dataclasses that are not frozen with as many
  fields without a default. Frozen dataclasses are values; they may have any number of fields.
- Tests that look inside (`x._name` of anything but self, cls and super()), that sleep without a comment on the line
  that says why time has to pass (see tests/waiting.py), and that call Playwright's wait_for_function: it evaluates its
  condition with eval(), which the policy of the viewer's pages forbids.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent

TASKS = {"create_task", "ensure_future", "create_task_group", "TaskGroup", "start_soon", "start_new_thread"}
"""Names that are not used at all."""
THREADS = {"Thread", "Timer", "ThreadPoolExecutor"}
"""Classes that are neither called nor subclassed; annotations may name them."""
TIMERS = {"call_later", "call_at"}
"""Methods of a supervisor or functions of osmosis_grpc.supervise only."""

UNREPEATABLE_MODULES = {"random", "secrets", "uuid"}
UNREPEATABLE = {
    "asyncio": {"to_thread"},
    "datetime": {"now", "today", "utcnow"},
    "os": {"getrandom", "urandom"},
    "time": {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"},
}
"""Names by the module or class that has them."""

MOST_PARAMETERS = 7

REFLECTION = {"setattr", "getattr", "delattr", "hasattr", "object", "setitem"}
"""Functions whose string arguments name attributes; `object` is mock.patch.object."""
DOCUMENTED = {"_exit", "_replace", "_asdict", "_fields"}
"""Names of the standard library that are documented though they begin with an underscore."""
OF_VERL = {"_agent_loop_postprocess", "_postprocess", "_run_agent_loop", "_get_mm_processor_kwargs"}
"""Methods of verl's workers. verl has no public ones that make a batch of outputs."""
FOREVER = 30.0
"""A sleep of so many seconds stands for work without an end."""

Problems = Iterator[tuple[int, str]]


def unsupervised(tree: ast.Module, _lines: list[str]) -> Problems:
    """Yield the uses of tasks, threads and timers that nothing watches."""
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
            supervised = _name(node.value).lstrip("_") in ("supervisor", "supervise")
            if node.attr in TASKS or (node.attr in TIMERS and not supervised):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TIMERS - ours:
            yield node.lineno, node.func.id
        for made in [node.func] if isinstance(node, ast.Call) else getattr(node, "bases", []):
            if _name(made) in THREADS:
                yield made.lineno, _name(made)


def unrepeatable(tree: ast.Module, _lines: list[str]) -> Problems:
    """Yield the uses of clocks, random numbers and ids that differ between two runs of a seed."""
    arguments = [node for node in ast.walk(tree) if isinstance(node, ast.arguments)]
    defaults = [each for node in arguments for each in (*node.defaults, *filter(None, node.kw_defaults))]
    allowed = {id(inner) for default in defaults for inner in ast.walk(default)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in UNREPEATABLE_MODULES)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if node.module in UNREPEATABLE_MODULES or alias.name in UNREPEATABLE.get(node.module or "", ()):
                    yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute):
            if node.attr in UNREPEATABLE.get(_name(node.value), ()):
                yield node.lineno, f"{_name(node.value)}.{node.attr}"
            elif node.attr == "run_in_executor":
                yield node.lineno, node.attr
        elif isinstance(node, ast.Name) and node.id == "SYSTEM" and id(node) not in allowed:
            yield node.lineno, "SYSTEM"


def large(tree: ast.Module, _lines: list[str]) -> Problems:
    """Yield the classes whose constructor has too many parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and max(_parameters(node), _required_fields(node)) > MOST_PARAMETERS:
            yield node.lineno, node.name


def _parameters(cls: ast.ClassDef) -> int:
    """Count the parameters of a class's own `__init__`, without self and configuration."""
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            return sum(not _is_config(each.annotation) for each in parameters) - 1
    return 0


def _required_fields(cls: ast.ClassDef) -> int:
    """Count the fields without a default of a dataclass that is not frozen; 0 for any other class."""
    decorators = [ast.unparse(decorator) for decorator in cls.decorator_list]
    if not any("dataclass" in text and "frozen=True" not in text for text in decorators):
        return 0
    fields = [node for node in cls.body if isinstance(node, ast.AnnAssign)]
    return sum(field.value is None and not _is_config(field.annotation) for field in fields)


def _is_config(annotation: ast.expr | None) -> bool:
    names = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)] if annotation else []
    return any(name.endswith(("Config", "Settings", "System")) for name in names)


def private(tree: ast.Module, _lines: list[str]) -> Problems:
    """Yield the private names of other objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _private(node.attr) and not _own(node.value):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("osmosis_grpc", "osmosis_gateway")):
            yield from ((node.lineno, alias.name) for alias in node.names if _private(alias.name))
        elif isinstance(node, ast.Call) and _name(node.func) in REFLECTION:
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            yield from ((node.lineno, text) for text in texts if _private(text))


def sleeps(tree: ast.Module, lines: list[str]) -> Problems:
    """Yield the sleeps without a comment. A sleep of 0 lets other tasks run."""
    for node in _calls(tree, "sleep"):
        seconds = node.args[0] if node.args else None
        harmless = isinstance(seconds, ast.Constant) and (seconds.value == 0 or seconds.value >= FOREVER)
        if not harmless and "#" not in lines[node.lineno - 1]:
            yield node.lineno, "sleep"


def evals(tree: ast.Module, _lines: list[str]) -> Problems:
    """Yield the calls that evaluate a condition with eval()."""
    yield from ((node.lineno, "wait_for_function") for node in _calls(tree, "wait_for_function"))


def _calls(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) == name)


def _private(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.startswith("_") and not last.startswith("__") and last != "_" and last not in DOCUMENTED | OF_VERL


def _own(node: ast.expr) -> bool:
    return _name(node) in {"self", "cls"} or (isinstance(node, ast.Call) and _name(node.func) == "super")


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Rule(NamedTuple):
    """A rule, and where it holds."""

    problems: Callable[[ast.Module, list[str]], Problems]
    message: str
    folders: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Beginnings of paths where the rule does not hold."""


RULES = (
    Rule(
        unsupervised,
        "starts work that nothing watches: use osmosis_grpc.supervise",
        ("osmosis_grpc", "gateway/osmosis_gateway"),
        # The reaper is a program of its own that imports nothing of the package.
        ("osmosis_grpc/supervise/", "osmosis_grpc/protocol/_gen/", "osmosis_grpc/tools/reaper.py"),
    ),
    Rule(
        unrepeatable,
        "differs between two runs of a seed: use supervisor.system",
        tuple(f"osmosis_grpc/{name}" for name in ("engine", "network", "server", "storage", "supervise", "trainer")),
        (
            "osmosis_grpc/network/client_calls.py",  # measures calls of grpc for the metrics; nothing decides by it
            "osmosis_grpc/server/tracelog.py",  # names the folder of a debug log when serve starts
            "osmosis_grpc/supervise/daemon_threads.py",  # runs functions of agents that block, on real threads
            "osmosis_grpc/supervise/system.py",  # is the System
            "osmosis_grpc/supervise/unsupervised.py",  # starts threads outside of a server or trainer
            "osmosis_grpc/trainer/progress_bar.py",  # draws on the screen
            "osmosis_grpc/trainer/task_sampler.py",  # draws with a seed of its own
        ),
    ),
    Rule(
        large,
        f"takes more than {MOST_PARAMETERS} parameters besides configuration",
        ("osmosis_grpc/engine", "osmosis_grpc/server", "osmosis_grpc/trainer"),
    ),
    Rule(
        private,
        "is private: test through a public seam",
        ("tests",),
        # Names of verl are below tests/trainers, and an event loop uses private names of asyncio.
        ("tests/faults/fuzzed_streams.py", "tests/trainers/", "tests/simulation/loop.py"),
    ),
    Rule(
        sleeps,
        "waits for time to pass: use tests.waiting.until, or say why in a comment on this line",
        ("tests",),
        ("tests/trainer/",),
    ),
    Rule(evals, "fails under the policy of the pages: use wait_until of tests/viewer/browser/readable.py", ("tests",)),
)


def problems(rule: Rule, source: str) -> list[tuple[int, str]]:
    """Return the line and the name of each problem in a module."""
    return sorted(rule.problems(ast.parse(source), source.splitlines()))


def main() -> int:
    """Print every problem. Returns how many there are, at most 1."""
    lines = [
        f"{shown}:{line}: {name} {rule.message}"
        for rule in RULES
        for folder in rule.folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not (shown := path.relative_to(ROOT).as_posix()).startswith(rule.left_out)
        for line, name in problems(rule, path.read_text())
    ]
    print(*lines, sep="\n", end="\n" if lines else "")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
