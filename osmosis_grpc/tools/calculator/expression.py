"""Evaluates an expression from its syntax tree. No name, attribute or call beyond the tables is possible."""

import ast
from typing import Any

from osmosis_grpc.tools.calculator.bounded_math import (
    CONSTANTS,
    FUNCTIONS,
    OPERATORS,
    CalculationError,
    Number,
    checked,
)

MAX_CHARACTERS = 1_000
MAX_DEPTH = 50
"""Parts within parts."""

_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "²": "**2", "³": "**3", "π": "pi"})  # noqa: RUF001


def evaluate(expression: str) -> Number:
    """Return the value of an expression. Raises CalculationError with what is wrong."""
    if len(expression) > MAX_CHARACTERS:
        raise CalculationError(f"the expression has more than {MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(expression.strip().translate(_SPELLINGS), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CalculationError(f"the expression cannot be read: {getattr(error, 'msg', error)}") from None
    return apply(_value, tree.body, 1)


def apply(function: Any, *arguments: Any) -> Number:
    """Call a function and return its checked result. Raises CalculationError for any error of arithmetic."""
    try:
        return checked(function(*arguments))
    except CalculationError:
        raise
    except ZeroDivisionError:
        raise CalculationError("division by zero") from None
    except OverflowError:
        raise CalculationError("the result is too large") from None
    except (ValueError, TypeError) as error:
        raise CalculationError(str(error)) from None


def _value(node: ast.expr, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise CalculationError(f"the expression has more than {MAX_DEPTH} parts within parts")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return checked(value)
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, depth + 1)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, depth)
        case ast.BinOp(op=ast.BitXor()):
            raise CalculationError("^ is not an operator; write ** for a power")
        case ast.BinOp(left=left, op=op, right=right) if type(op).__name__ in OPERATORS:
            return apply(OPERATORS[type(op).__name__], _number(left, depth), _number(right, depth))
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_number(part, depth) for part in parts]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return apply(FUNCTIONS[name], *(_value(argument, depth + 1) for argument in arguments))
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            known = ", ".join([*FUNCTIONS, *CONSTANTS])
            raise CalculationError(f"{name!r} is not known, or not used so; known: {known}")
    raise CalculationError(f"{type(node).__name__} is not part of an expression of numbers")


def _number(node: ast.expr, depth: int) -> Number:
    return checked(_value(node, depth + 1))
