"""Plans a trip with a helper that looks for trains. It needs only the anthropic package, and knows nothing of training.

With a model of your own:     ANTHROPIC_API_KEY=... python agent.py "From Oslo to Lisbon, cheap."
As an agent in training:      osmosis-grpc serve --command "python agent.py"

The planner calls the helper as a tool. The helper is a conversation of its own with the model, so in training each
rollout has two samples, and the helper's sample has the planner's chat as its parent.
"""

import json
import os
import sys
from pathlib import Path

import anthropic

MODEL = os.environ.get("MODEL", "claude-sonnet-4-5")
PRICES = {("Oslo", "Lisbon"): 240, ("Oslo", "Paris"): 120, ("Paris", "Lisbon"): 90}
FIND = {
    "name": "find",
    "description": "Asks a helper for the cheapest way between two cities.",
    "input_schema": {"type": "object", "properties": {"request": {"type": "string"}}, "required": ["request"]},
}
PRICE = {
    "name": "price",
    "description": "The price of a train between two cities in euros.",
    "input_schema": {
        "type": "object",
        "properties": {"start": {"type": "string"}, "end": {"type": "string"}},
        "required": ["start", "end"],
    },
}


def converse(client: anthropic.Anthropic, system: str, question: str, tool: dict, run_tool) -> str:
    """Ask until the model calls no tool, and return its last text."""
    messages = [{"role": "user", "content": question}]
    for _ in range(8):
        with client.messages.stream(
            model=MODEL, max_tokens=1024, system=system, messages=messages, tools=[tool]
        ) as stream:
            reply = stream.get_final_message()
        messages.append({"role": "assistant", "content": reply.content})
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in reply.content if block.type == "text")
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": str(run_tool(**call.input))} for call in calls
        ]
        messages.append({"role": "user", "content": results})
    return ""


def plan(question: str) -> str:
    client = anthropic.Anthropic()

    def price(start: str, end: str) -> object:
        return PRICES.get((start, end), "no train")

    def find(request: str) -> str:
        return converse(client, "You compare trains.", request, PRICE, price)

    return converse(client, "You plan trips. Name only the price.", question, FIND, find)


def main() -> None:
    if len(sys.argv) > 1:
        print(plan(sys.argv[1]))
        return
    task = json.load(sys.stdin)
    found = plan(task["messages"][-1]["content"])
    print(found)
    result = {"reward": float(found.strip() == task["label"])}
    Path(os.environ["OSMOSIS_RESULT_FILE"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
