"""The anthropic package."""

from anthropic import Anthropic
from case import PROMPT, SCHEMA, Answer, case, multiply, run

CLIENT = Anthropic()
TOOLS = [{"name": "multiply", "description": "Multiply two numbers.", "input_schema": SCHEMA}]
THINKING = {"type": "enabled", "budget_tokens": 1024}
ASKED = {"model": "policy", "max_tokens": 2000, "messages": [{"role": "user", "content": PROMPT}]}


@case
def tools():
    messages = list(ASKED["messages"])
    while True:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        reply = CLIENT.messages.create(
            **{**ASKED, "messages": messages, "max_tokens": 2000}, tools=TOOLS, thinking=thinking
        )
        messages.append({"role": "assistant", "content": reply.content})
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return reply.content[-1].text
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": str(multiply(**call.input))} for call in calls
        ]
        messages.append({"role": "user", "content": results})


@case
def stream():
    with CLIENT.messages.stream(**ASKED) as got:
        text = "".join(got.text_stream)
        assert got.get_final_message().usage.output_tokens
    return text


@case
def structured():
    return CLIENT.messages.parse(**ASKED, output_format=Answer).parsed_output


@case
def count():
    assert CLIENT.messages.count_tokens(model="policy", messages=ASKED["messages"]).input_tokens
    return stream()


run()
