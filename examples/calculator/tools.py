"""The tools. The types of the parameters make the schemas; the docstrings tell the model what a tool does."""

from osmosis_grpc.agent import tool


@tool
async def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@tool
async def subtract(a: float, b: float) -> float:
    """Subtract the second number from the first."""
    return a - b


@tool
async def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


@tool
async def divide(a: float, b: float) -> float:
    """Divide the first number by the second."""
    return a / b


TOOLS = (add, subtract, multiply, divide)
