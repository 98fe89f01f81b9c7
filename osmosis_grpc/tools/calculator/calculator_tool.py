"""Makes the tool `calculator`."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from osmosis_grpc.agent.tool_decorator import Tool
from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.tools.calculator.bounded_math import CalculationError, Number, divide, factorial, power, square_root
from osmosis_grpc.tools.calculator.expression import apply, evaluate

NAME = "calculator"
MAX_NUMBERS = 1_000
EXACT = 2.0**53
"""Above it, a float that looks like an integer may be a rounded one."""

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
"""For each operation: the function, and the least and the most numbers. The first four take two and go on."""


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
