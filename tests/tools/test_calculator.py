"""The calculator: exact integers, bounded work, and nothing but numbers."""

import pytest

from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.tools.calculator import calculator_tool

CALCULATOR = calculator_tool()


async def result(**arguments):
    return (await CALCULATOR.run(arguments))["result"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("15 * 24", 360),
        ("2 * (3 + 4) ** 2 % 7", 0),
        ("-3 - +2", -5),
        ("7 / 2", 3.5),
        ("7 // 2", 3),
        ("10**400 / 10**399", 10),
        ("2**53 + 1", 9007199254740993),
        ("10**400", 10**400),
        ("sqrt(144) + abs(-2)", 14),
        ("sqrt(10**100)", 10**50),
        ("sqrt(2)", 1.4142135624),
        ("sum(1, 2, 3) + sum([4, 5])", 15),
        ("max(1, min(5, 3))", 3),
        ("sin(pi / 2) + cos(0) + tan(0)", 2),
        ("asin(1) + acos(1) + atan(0)", 1.5707963268),
        ("log(e) + log10(1000) + log2(8) + log(8, 2)", 10),
        ("exp(0) + ceil(1.2) + floor(1.8)", 4),
        ("round(2.567, 2) + round(2.4)", 4.57),
        ("factorial(20)", 2432902008176640000),
        ("2³ × 3² ÷ 4 + π * 0", 18),  # noqa: RUF001
        ("0.1 + 0.2", 0.3),
        ("1e3", 1000),
    ],
)
@pytest.mark.row("ARL 38")
async def test_an_expression_has_its_exact_value(expression, value):
    got = await result(expression=expression)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"operation": "add", "numbers": [1, 2, 3]}, 6),
        ({"operation": "subtract", "a": 5, "b": 3}, 2),
        ({"operation": "multiply", "numbers": [2, 3, 2**60]}, 6 * 2**60),
        ({"operation": "divide", "a": 7, "b": 2}, 3.5),
        ({"operation": "power", "base": 2, "exponent": 100}, 2**100),
        ({"operation": "power", "a": 2, "b": 3}, 8),
        ({"operation": "sqrt", "n": 144}, 12),
        ({"operation": "factorial", "n": 5}, 120),
        ({"operation": "log", "n": 8, "base": 2}, 3),
        ({"operation": "sin", "angle": 90, "unit": "degrees"}, 1),
        ({"operation": "cos", "angle": 0}, 1),
        ({"operation": "tan", "angle": 45, "unit": "degrees"}, 1),
        ({"expression": "1 + 1", "operation": "add", "numbers": [5, 5]}, 2),
    ],
)
@pytest.mark.row("ARL 38")
async def test_every_operation_of_the_schema_works(arguments, value):
    assert await result(**arguments) == value


@pytest.mark.row("ARL 38")
def test_the_cases_above_have_every_operation_of_the_schema():
    properties = CALCULATOR.openai_schema()["function"]["parameters"]["properties"]
    enum = next(each["enum"] for each in properties["operation"]["anyOf"] if "enum" in each)
    marks = test_every_operation_of_the_schema_works.pytestmark
    (cases,) = (mark.args[1] for mark in marks if mark.name == "parametrize")
    assert {arguments["operation"] for arguments, _ in cases if "operation" in arguments} == set(enum)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("9**9**9", "bits"),
        ("factorial(10**9)", "factorial"),
        ("factorial(1.5)", "factorial"),
        ("2**2**2**2**2**2", "bits"),
        ("pow(10, 10**10)", "bits"),
        ("(-8) ** 0.5", "real number"),
        ("10**3000 * 10**3000", "bits"),
        ("exp(1000)", "too large"),
        ("1e308 * 10", "finite"),
        ("10.0 ** 1000", "too large"),
        ("1 / 0", "division by zero"),
        ("log(-1)", "domain"),
        ("round(1, 10**10)", "round"),
        ("round(5, -(10**9))", "round"),
        ("(" * 150 + "1" + ")" * 150 + "**" + "(" * 100, "cannot be read"),
        ("-" * 900 + "1", "parts within parts"),
        ("+".join("1" * 400), "parts within parts"),
        ("1" * 1001, "1000 characters"),
        ("9" * 990 + "**5", "bits"),
        ("2 ^ 3", r"write \*\*"),
        ("().__class__", "Attribute"),
        ("__import__('os')", "__import__"),
        ("abs.__call__(1)", "Call"),
        ("pi.real", "Attribute"),
        ("[x for x in (1, 2)]", "ListComp"),
        ("lambda: 1", "Lambda"),
        ("'a' * 10", "Constant"),
        ("True + 1", "Constant"),
        ("sum", "sum"),
        ("sum()", "no numbers"),
        ("sin(1, 2)", "argument"),
        ("[1, 2]", "real number|part"),
        ("1 +", "cannot be read"),
        ("", "cannot be read"),
        ("1; 2", "cannot be read"),
        ("(x := 1)", "NamedExpr"),
        ("f'{1}'", "JoinedStr"),
    ],
)
@pytest.mark.row("ARL 38")
async def test_anything_else_is_refused_with_a_reason(expression, problem):
    with pytest.raises(ToolArgumentError, match=problem):
        await result(expression=expression)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "expression: it is missing"),
        ({"operation": "add", "numbers": [1]}, "numbers: add takes 2 to"),
        ({"operation": "sqrt"}, "numbers: sqrt takes 1 of them, not 0"),
        ({"operation": "modulo", "a": 1, "b": 2}, "operation"),
        ({"expression": "1", "digits": 3}, "digits: is not a parameter"),
    ],
)
@pytest.mark.row("ARL 38")
async def test_wrong_arguments_name_the_parameter(arguments, problem):
    with pytest.raises(ToolArgumentError, match=problem):
        await result(**arguments)


@pytest.mark.row("ARL 38")
async def test_the_precision_is_an_option():
    assert (await calculator_tool(precision=2).run({"expression": "2 / 3"}))["formatted_result"] == "0.67"
    with pytest.raises(ValueError, match="precision: 16"):
        calculator_tool(precision=16)
