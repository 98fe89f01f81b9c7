"""Arithmetic whose integers are exact and have at most MAX_BITS bits, so that each step ends within a millisecond."""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

Number = int | float

MAX_BITS = 14_000
"""About 4,200 digits. Python does not print integers of more than 4,300 digits."""
MAX_FACTORIAL = 1_500
MAX_DIGITS = 400
"""The most digits to which round() rounds."""


class CalculationError(ValueError):
    """A calculation is not possible, or would be too large."""


def checked(value: Any) -> Number:
    """Return a result. Raises CalculationError if it is no real number, not finite, or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CalculationError("the result is not a real number")
    if isinstance(value, float) and not math.isfinite(value):
        raise CalculationError("the result is not a finite number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise CalculationError(f"the result has more than {MAX_BITS} bits")
    return value


def divide(a: Number, b: Number) -> Number:
    """Return a / b. The quotient of two integers is an integer if nothing is left."""
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
