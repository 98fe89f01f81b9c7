"""Finds tests that look inside or that sleep: `python scripts/lint_tests.py` in `make check`.

Private: an attribute `x._name` of anything but self, cls and super(), a private name as a string argument of setattr,
an import of a private name from osmosis_grpc or osmosis_gateway. Tests use public seams instead.
Sleep: a call of sleep without a comment on its line. Tests wait for a condition with `tests.waiting`; the comment says
why time has to pass. A sleep of 0 lets other tasks run; half a minute or more stands for work without an end.
Eval: a call of Playwright's wait_for_function. It evaluates its condition again with eval() if it is false at first,
and the policy of the viewer's pages forbids eval(): such a test fails only now and then.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEFT = {
    "private": ("tests/faults/fuzzed_streams.py", "tests/trainers/", "tests/simulation/loop.py"),
    "sleep": ("tests/trainer/",),
}
"""Where a rule does not hold yet, by rule: beginnings of paths. The names below tests/trainers are those of verl.

An event loop uses private names of asyncio.
"""
REFLECTION = {"setattr", "getattr", "delattr", "hasattr", "object", "setitem"}
"""Functions whose string arguments name attributes; `object` is mock.patch.object."""
DOCUMENTED = {"_exit", "_replace", "_asdict", "_fields"}
"""Names of the standard library that are documented though they begin with an underscore."""
OF_VERL = {"_agent_loop_postprocess", "_postprocess", "_run_agent_loop", "_get_mm_processor_kwargs"}
"""Methods of verl's workers. verl has no public ones that make a batch of outputs."""
FOREVER = 30.0
"""A sleep of so many seconds stands for work without an end."""
MESSAGES = {
    "private": "is private: test through a public seam",
    "sleep": "waits for time to pass: use tests.waiting.until, or say why in a comment on this line",
    "eval": "fails under the policy of the pages: use wait_until of tests/viewer/browser/readable.py",
}


def problems(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the rule and the name of each problem in a module."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and _private(node.attr) and not _own(node.value):
            yield node.lineno, "private", node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("osmosis_grpc", "osmosis_gateway")):
            yield from ((node.lineno, "private", alias.name) for alias in node.names if _private(alias.name))
        elif isinstance(node, ast.Call):
            name = _name(node.func)
            if name in REFLECTION:
                yield from ((node.lineno, "private", text) for text in _strings(node) if _private(text))
            elif name == "sleep" and not _harmless(node) and "#" not in lines[node.lineno - 1]:
                yield node.lineno, "sleep", name
            elif name == "wait_for_function":
                yield node.lineno, "eval", name


def _private(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.startswith("_") and not last.startswith("__") and last != "_" and last not in DOCUMENTED | OF_VERL


def _own(node: ast.expr) -> bool:
    return _name(node) in {"self", "cls"} or (isinstance(node, ast.Call) and _name(node.func) == "super")


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _strings(call: ast.Call) -> list[str]:
    return [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]


def _harmless(call: ast.Call) -> bool:
    seconds = call.args[0] if call.args else None
    return isinstance(seconds, ast.Constant) and (seconds.value == 0 or seconds.value >= FOREVER)


def main() -> int:
    """Print every problem. Returns how many there are, at most 1."""
    found = 0
    for path in sorted((ROOT / "tests").rglob("*.py")):
        shown = path.relative_to(ROOT).as_posix()
        for line, rule, name in sorted(problems(path.read_text())):
            if not shown.startswith(LEFT.get(rule, ())):
                found = 1
                print(f"{shown}:{line}: {name} {MESSAGES[rule]}")
    return found


if __name__ == "__main__":
    sys.exit(main())
