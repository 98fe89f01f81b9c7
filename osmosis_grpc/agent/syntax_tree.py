"""Parses Python, and tries again if the interpreter fails by chance.

CPython before 3.11.8 and 3.12.2 raises SystemError if other code parses while it makes a tree, for example a second
thread or a finalizer (issue 106905 of CPython).
"""

import ast
from collections.abc import Callable
from typing import TypeVar

TRIES = 10

Tree = TypeVar("Tree")


def parse(source: str | bytes) -> ast.Module:
    """Return the tree of a file. Raises SyntaxError, ValueError and MemoryError as ast.parse does."""
    return _tried_again(lambda: ast.parse(source))


def parse_expression(source: str) -> ast.expr:
    """Return the tree of an expression. Raises SyntaxError, ValueError and MemoryError as ast.parse does."""
    return _tried_again(lambda: ast.parse(source, mode="eval")).body


def _tried_again(parse: Callable[[], Tree]) -> Tree:
    for _ in range(TRIES - 1):
        try:
            return parse()
        except SystemError:
            continue
    return parse()
