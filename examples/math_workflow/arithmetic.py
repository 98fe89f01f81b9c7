"""Evaluates arithmetic that a model wrote. Nothing but numbers and operators is possible, and every size is bounded."""

import ast
import operator
from collections.abc import Callable

MAX_CHARS = 200
MAX_EXPONENT = 64
MAX_VALUE = 1e18

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def evaluate(expression: str) -> float:
    """Return the value of an expression. Raises ValueError for anything that is not bounded arithmetic."""
    if len(expression) > MAX_CHARS:
        raise ValueError(f"the expression has more than {MAX_CHARS} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        raise ValueError(f"{expression!r} is not an expression") from None
    return _value(tree.body)


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > MAX_EXPONENT:
            raise ValueError(f"the exponent {right:g} is beyond {MAX_EXPONENT}")
        try:
            return _bounded(_BINARY[type(node.op)](left, right))
        except (ZeroDivisionError, OverflowError) as error:
            raise ValueError(str(error)) from None
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")


def _bounded(value: float) -> float:
    if isinstance(value, complex) or not abs(value) <= MAX_VALUE:
        raise ValueError(f"a value is not a real number up to {MAX_VALUE:g}")
    return value
