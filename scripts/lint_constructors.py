"""Finds constructors that take too much: `python scripts/lint_constructors.py` in `make check`.

In the packages below, an `__init__` has at most seven parameters besides configuration, and so has a dataclass that is
not frozen, fields with a default left out. Configuration is a parameter whose type is a ...Config or ...Settings class,
or the System.
Frozen dataclasses are values; they may have any number of fields.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("osmosis_grpc/engine", "osmosis_grpc/server", "osmosis_grpc/trainer")
MOST = 7


def problems(source: str) -> Iterator[tuple[int, str, int]]:
    """Yield the line and the name of each class that takes too much, and the number of its parameters."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            count = max(_init_parameters(node), _required_fields(node))
            if count > MOST:
                yield node.lineno, node.name, count


def _init_parameters(cls: ast.ClassDef) -> int:
    """Count the parameters of a class's own `__init__`, without self and configuration."""
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            return sum(not _is_config(arg.annotation) for arg in given) - 1
    return 0


def _required_fields(cls: ast.ClassDef) -> int:
    """Count the fields without a default of a dataclass; 0 for a frozen dataclass and for any other class."""
    decorators = [ast.unparse(decorator) for decorator in cls.decorator_list]
    if not any("dataclass" in text and "frozen=True" not in text for text in decorators):
        return 0
    fields = [node for node in cls.body if isinstance(node, ast.AnnAssign)]
    return sum(field.value is None and not _is_config(field.annotation) for field in fields)


def _is_config(annotation: ast.expr | None) -> bool:
    names = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)] if annotation else []
    return any(name.endswith(("Config", "Settings", "System")) for name in names)


def main() -> int:
    """Print every problem. Returns how many there are, at most 1."""
    found = 0
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for line, name, count in problems(path.read_text()):
                found = 1
                shown = path.relative_to(ROOT).as_posix()
                print(f"{shown}:{line}: {name} takes {count} parameters besides configuration, more than {MOST}")
    return found


if __name__ == "__main__":
    sys.exit(main())
