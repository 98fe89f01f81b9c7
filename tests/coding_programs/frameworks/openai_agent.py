"""The openai package: chat completions and Responses."""

import json

from case import PROMPT, SCHEMA, Answer, case, multiply, run
from openai import OpenAI

CLIENT = OpenAI()
ABOUT = {"name": "multiply", "description": "Multiply two numbers.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": ABOUT}]
FLAT = [{"type": "function", **ABOUT, "strict": False}]


@case
def tools():
    messages = [{"role": "user", "content": PROMPT}]
    while True:
        message = CLIENT.chat.completions.create(model="policy", messages=messages, tools=TOOLS).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            product = multiply(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(product)})


@case
def stream():
    asked = [{"role": "user", "content": PROMPT}]
    with CLIENT.chat.completions.stream(model="policy", messages=asked, stream_options={"include_usage": True}) as got:
        text = "".join(event.delta for event in got if event.type == "content.delta")
        assert got.get_final_completion().usage.completion_tokens
    return text


@case
def structured():
    asked = [{"role": "user", "content": PROMPT}]
    parsed = CLIENT.chat.completions.parse(model="policy", messages=asked, response_format=Answer)
    return parsed.choices[0].message.parsed


@case
def responses_tools():
    reply = CLIENT.responses.create(model="policy", input=PROMPT, tools=FLAT, reasoning={"effort": "low"})
    while calls := [item for item in reply.output if item.type == "function_call"]:
        outputs = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": str(multiply(**json.loads(call.arguments))),
            }
            for call in calls
        ]
        reply = CLIENT.responses.create(model="policy", previous_response_id=reply.id, input=outputs, tools=FLAT)
    return reply.output_text


@case
def responses_stream():
    with CLIENT.responses.stream(model="policy", input=PROMPT) as got:
        return "".join(event.delta for event in got if event.type == "response.output_text.delta")


@case
def responses_structured():
    return CLIENT.responses.parse(model="policy", input=PROMPT, text_format=Answer).output_parsed


run()
