"""LiteLLM as a client: chat completions, Responses, and Messages."""

import json

import litellm
from case import PROMPT, SCHEMA, Answer, case, multiply, run

ASKED = {"model": "openai/policy", "messages": [{"role": "user", "content": PROMPT}]}
TOOLS = [{"type": "function", "function": {"name": "multiply", "description": "Multiply.", "parameters": SCHEMA}}]


@case
def tools():
    messages = list(ASKED["messages"])
    while True:
        message = litellm.completion(**{**ASKED, "messages": messages}, tools=TOOLS).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            product = multiply(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(product)})


@case
def stream():
    return "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**ASKED, stream=True))


@case
def structured():
    reply = litellm.completion(**ASKED, response_format=Answer)
    return Answer.model_validate_json(reply.choices[0].message.content)


@case
def messages_of_anthropic():
    chunks = litellm.completion(**{**ASKED, "model": "anthropic/policy"}, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


run()
