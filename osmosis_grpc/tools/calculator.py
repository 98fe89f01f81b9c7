"""The tool `calculator`: expressions and single operations, with exact integers and bounded work."""

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from osmosis_grpc.agent.tool_decorator import Tool
from osmosis_grpc.protocol.errors import ToolArgumentError

Number = int | float

MAX_BITS = 14_000
"""About 4,200 digits. Python does not print integers of more than 4,300 digits."""
MAX_FACTORIAL = 1_500
MAX_DIGITS = 400
"""round() takes at most this many digits."""


class CalculationError(ValueError):
    """A calculation is not possible, or would be too large."""


def checked(value: Any) -> Number:
    """Return a result. Raises CalculationError if it is not a real number, not finite, or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CalculationError("the result is not a real number")
    if isinstance(value, float) and not math.isfinite(value):
        raise CalculationError("the result is not a finite number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise CalculationError(f"the result has more than {MAX_BITS} bits")
    return value


def divide(a: Number, b: Number) -> Number:
    """Return a / b. The quotient of two integers is an integer if there is no remainder."""
    if isinstance(a, int) and isinstance(b, int) and b and a % b == 0:
        return a // b
    return a / b


def power(a: Number, b: Number) -> Number:
    """Return a ** b. Raises CalculationError before a large power is calculated."""
    if isinstance(a, int) and isinstance(b, int) and abs(a) > 1 and a.bit_length() * abs(b) > 2 * MAX_BITS:
        raise CalculationError(f"the power has more than {MAX_BITS} bits")
    result: Number = a**b
    return result


def factorial(n: Number) -> int:
    """Return n!. Raises CalculationError for a number that is not an integer from 0 to MAX_FACTORIAL."""
    if n != int(n) or not 0 <= n <= MAX_FACTORIAL:
        raise CalculationError(f"factorial takes an integer from 0 to {MAX_FACTORIAL}")
    return math.factorial(int(n))


def square_root(a: Number) -> Number:
    """Return the root, exact for the square of an integer."""
    if isinstance(a, int) and a >= 0 and math.isqrt(a) ** 2 == a:
        return math.isqrt(a)
    return math.sqrt(a)


def rounded(a: Number, digits: Number = 0) -> Number:
    """Round a number to some digits after the point."""
    if digits != int(digits) or abs(digits) > MAX_DIGITS:
        raise CalculationError(f"round takes an integer of at most {MAX_DIGITS} digits")
    return round(a, int(digits)) if digits else round(a)


def total(*values: Any) -> Number:
    """Return the sum of numbers, or of one list of numbers."""
    return sum(_numbers(values))


def smallest(*values: Any) -> Number:
    """Return the smallest number."""
    return min(_numbers(values))


def largest(*values: Any) -> Number:
    """Return the largest number."""
    return max(_numbers(values))


def _numbers(values: tuple[Any, ...]) -> tuple[Number, ...]:
    numbers = tuple(values[0]) if len(values) == 1 and isinstance(values[0], list) else values
    if not numbers:
        raise CalculationError("there are no numbers")
    return numbers


OPERATORS: Mapping[str, Callable[[Number, Number], Number]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": divide,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": power,
}
"""The operators, by the names of Python's syntax tree."""

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "round": rounded,
    "min": smallest,
    "max": largest,
    "sum": total,
    "sqrt": square_root,
    "pow": power,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "radians": math.radians,
    "degrees": math.degrees,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "exp": math.exp,
    "ceil": math.ceil,
    "floor": math.floor,
    "factorial": factorial,
}

CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}


MAX_CHARACTERS = 1_000
MAX_DEPTH = 50
"""The parts of an expression can be nested this deep."""

_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "²": "**2", "³": "**3", "π": "pi"})  # noqa: RUF001


def evaluate(expression: str) -> Number:
    """Return the value of an expression. Raises CalculationError, whose text says what is wrong."""
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


NAME = "calculator"
MAX_NUMBERS = 1_000
EXACT = 2.0**53
"""A larger float that looks like an integer may have been rounded."""

Operation = Literal["add", "subtract", "multiply", "divide", "power", "sqrt", "factorial", "log", "sin", "cos", "tan"]

_OPERATIONS: Mapping[str, tuple[Callable[..., Any], int, int]] = {
    "add": (lambda a, b: a + b, 2, MAX_NUMBERS),
    "subtract": (lambda a, b: a - b, 2, MAX_NUMBERS),
    "multiply": (lambda a, b: a * b, 2, MAX_NUMBERS),
    "divide": (divide, 2, MAX_NUMBERS),
    "power": (power, 2, 2),
    "sqrt": (square_root, 1, 1),
    "factorial": (factorial, 1, 1),
    "log": (math.log, 1, 2),
    "sin": (math.sin, 1, 1),
    "cos": (math.cos, 1, 1),
    "tan": (math.tan, 1, 1),
}
"""For each operation: the function, and the least and the most numbers. The first four are applied from left to right.
"""


def calculator_tool(*, precision: int = 10) -> Tool[..., Any]:
    """Return the tool. `precision` is the number of digits after the point, from 0 to 15. Raises ValueError."""
    if precision not in range(16):
        raise ValueError(f"precision: {precision!r} is not an integer from 0 to 15")

    async def calculator(
        expression: str | None = None,
        operation: Operation | None = None,
        numbers: list[int | float] | None = None,
        a: int | float | None = None,
        b: int | float | None = None,
        n: int | float | None = None,
        base: int | float | None = None,
        exponent: int | float | None = None,
        angle: int | float | None = None,
        unit: Literal["radians", "degrees"] = "radians",
    ) -> dict[str, Any]:
        """Calculate an expression, or one operation.

        Args:
            expression: for example 2 * (3 + 4) ** 2 or sqrt(2) * sin(pi / 4); replaces all other parameters
            operation: what to do with the numbers
            numbers: the numbers of the operation
            a: the first number, if there are no numbers
            b: the second number
            n: the number of factorial, sqrt or log
            base: the base of power or log
            exponent: the exponent of power
            angle: the angle of sin, cos or tan
            unit: the unit of the angle
        """
        try:
            if expression is not None:
                return _answer(evaluate(expression), precision, "expression", expression)
            if operation is None:
                raise CalculationError("expression: it is missing; give it, or an operation with numbers")
            given = numbers if numbers is not None else _operands(operation, a, b, n, base, exponent, angle)
            if unit == "degrees" and operation in ("sin", "cos", "tan"):
                given = [math.radians(number) for number in given]
            return _answer(_operate(operation, given), precision, "operation", f"{operation} {given}")
        except CalculationError as error:
            raise ToolArgumentError(str(error), "", NAME) from None

    return Tool(calculator, name=NAME)


def _operands(operation: str, a: Any, b: Any, n: Any, base: Any, exponent: Any, angle: Any) -> list[Number]:
    order = {"power": (base, exponent, a, b), "log": (n, a, base, b)}.get(operation, (angle, n, a, b))
    return [number for number in order if number is not None]


def _operate(operation: str, numbers: Sequence[Number]) -> Number:
    function, least, most = _OPERATIONS[operation]
    if not least <= len(numbers) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise CalculationError(f"numbers: {operation} takes {wanted} of them, not {len(numbers)}")
    if least == 2:
        return functools.reduce(lambda left, right: apply(function, left, right), numbers)
    return apply(function, *numbers)


def _answer(value: Number, precision: int, kind: str, details: str) -> dict[str, Any]:
    if isinstance(value, float):
        value = round(value, precision)
        if value.is_integer() and abs(value) < EXACT:
            value = int(value)
    return {"result": value, "formatted_result": str(value), "calculation_type": kind, "details": details}
