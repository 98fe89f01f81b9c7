"""Answers questions about the orders of a shop. It needs only the openai package, and knows nothing of training.

With a model of your own:     OPENAI_API_KEY=... python agent.py "Which orders are late?"
As an agent in training:      osmosis-grpc serve --command "python agent.py"

In training the question arrives as JSON on standard input, and the package finds the rollout's model through the
variables OPENAI_BASE_URL and OPENAI_API_KEY. The reward goes into the file that OSMOSIS_RESULT_FILE names.
"""

import json
import os
import sys
from pathlib import Path

import openai

ORDERS = {
    "A1": {"status": "late", "price": 20},
    "B2": {"status": "sent", "price": 35},
    "C3": {"status": "late", "price": 5},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "list_orders",
            "description": "The ids of the orders with a status.",
            "parameters": {
                "type": "object",
                "properties": {"status": {"type": "string", "enum": ["late", "sent"]}},
                "required": ["status"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_price",
            "description": "The price of an order in euros.",
            "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        },
    },
]


def run_tool(name: str, arguments: dict) -> object:
    if name == "list_orders":
        return [order for order, fields in ORDERS.items() if fields["status"] == arguments["status"]]
    return ORDERS[arguments["id"]]["price"]


def answer(question: str) -> str:
    client = openai.OpenAI()
    messages = [{"role": "system", "content": "Answer with one number or id."}, {"role": "user", "content": question}]
    for _ in range(8):
        reply = (
            client.chat.completions.create(
                model=os.environ.get("MODEL", "gpt-4.1-mini"), messages=messages, tools=TOOLS
            )
            .choices[0]
            .message
        )
        messages.append(reply)
        if not reply.tool_calls:
            return reply.content or ""
        for call in reply.tool_calls:
            try:
                result = run_tool(call.function.name, json.loads(call.function.arguments))
            except (KeyError, ValueError) as error:
                result = f"Error: {error!r}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    return ""


def main() -> None:
    if len(sys.argv) > 1:
        print(answer(sys.argv[1]))
        return
    task = json.load(sys.stdin)
    found = answer(task["messages"][-1]["content"])
    print(found)
    result = {"reward": float(found.strip() == task["label"]), "metadata": {"answer": found}}
    Path(os.environ["OSMOSIS_RESULT_FILE"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
