"""A program in place of a model. It solves a question of two numbers with one tool call."""

import json
import re

OPERATORS = {"+": "add", "*": "multiply", "-": "subtract"}


def reply(prompt: str) -> str:
    """Returns the text that follows a prompt of tiny_model.TEMPLATE. The prompt may end within a reply."""
    left, operator, right = re.findall(r"What is (\d+) (.) (\d+)\?", prompt)[-1]
    turn, begun = prompt.rsplit("<|im_start|>assistant\n", 1)
    results = re.findall(r"<\|im_start\|>tool\n(.*?)<", turn)
    call = {"name": OPERATORS[operator], "arguments": {"a": int(left), "b": int(right)}}
    whole = f"#### {float(results[-1]):g}" if results else f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    return f"{whole}<|im_end|>"[len(begun) :]
