"""The questions of the example, and random tools for them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

OPERATORS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its answer. Each step is the name of a tool; `numbers` has one more entry than `steps`."""

    steps: tuple[str, ...]
    numbers: tuple[int, ...]

    @property
    def text(self) -> str:
        """For example: What is (2 + 3) * 4?"""
        text = str(self.numbers[0])
        for count, (step, number) in enumerate(zip(self.steps, self.numbers[1:], strict=True)):
            text = f"({text})" if count else text
            text += f" {OPERATORS[step]} {number}"
        return f"What is {text}?"

    @property
    def answer(self) -> float:
        """The right answer."""
        *_, (_, _, result) = calls(self.steps, self.numbers)
        return result


def calls(steps: tuple[str, ...], numbers: tuple[int, ...]) -> Iterator[tuple[float, float, float]]:
    """Yield the two arguments and the result of each step."""
    left = float(numbers[0])
    for step, right in zip(steps, numbers[1:], strict=True):
        result = calculate(step, left, right)
        yield left, right, result
        left = result


def calculate(step: str, left: float, right: float) -> float:
    """Return what the tool of the calculator agent returns."""
    match step:
        case "add":
            return left + right
        case "subtract":
            return left - right
        case "multiply":
            return left * right
        case _:
            return left / right


def whole(steps: tuple[str, ...], numbers: tuple[int, ...]) -> bool:
    """Return whether every result is a whole number."""
    return all(result.is_integer() for _, _, result in calls(steps, numbers))


def drawn_steps(source: random.Random, numbers: tuple[int, ...]) -> tuple[str, ...]:
    """Draw tools for these numbers whose results are whole numbers."""
    while True:
        steps = tuple(source.choice(list(OPERATORS)) for _ in numbers[1:])
        if whole(steps, numbers):
            return steps


def draw(source: random.Random) -> Question:
    """Draw a question with one or two steps. The numbers are from 1 to 9, and the results are whole numbers."""
    while True:
        steps = tuple(source.choice(list(OPERATORS)) for _ in range(source.choice((1, 1, 2))))
        numbers = tuple(source.randint(1, 9) for _ in range(len(steps) + 1))
        if whole(steps, numbers):
            return Question(steps, numbers)
