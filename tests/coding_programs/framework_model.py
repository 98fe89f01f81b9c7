"""A token policy whose model answers what a framework asks: with a tool call, with JSON, or with a text."""

import json
import re
from dataclasses import dataclass, field

import numpy as np

from osmosis_grpc.policies import ChatRenderer, TokenPolicy
from osmosis_grpc.protocol.errors import ContextLengthExceeded
from osmosis_grpc.protocol.types import ChatRequest
from tests.coding_programs.scripted_model import one_system_message
from tests.policies.byte_tokenizer import ByteTokenizer
from tests.policies.scripted_generator import generated

TOOL, ARGUMENTS = "multiply", {"a": 6, "b": 7}
TEXT = "The answer is 42."
PYTHON = "final_answer(multiply(6, 7))"


@dataclass
class FrameworkModel:
    """Its policy answers each chat. `replies` has the ids and the logprobs that it sampled, in order."""

    full: bool = False
    """Whether each prompt is too long."""
    chats: list = field(default_factory=list)
    replies: list = field(default_factory=list)

    def __post_init__(self):
        self._tokenizer = ByteTokenizer()
        self._tokenizer.template = one_system_message
        self._policy = TokenPolicy(ChatRenderer(self._tokenizer), self)

    async def __call__(self, request: ChatRequest, /):
        self.chats.append(request)
        return await self._policy(request)

    async def generate(self, request):
        if self.full:
            raise ContextLengthExceeded(len(request.prompt_ids), 10)
        result = generated(self._reply(self.chats[-1]))
        number = np.arange(len(result.token_ids), dtype="<f4")
        result.logprobs[:] = -(len(self.replies) + 1) - number / 1024
        self.replies.append((result.token_ids.copy(), result.logprobs.copy()))
        return result

    async def abort(self, request_id):
        pass

    def _reply(self, chat):
        tools = {tool["function"]["name"]: tool["function"] for tool in chat.tools or ()}
        answered = any(message["role"] == "tool" for message in chat.messages) or "Observation:" in str(
            chat.messages[-1]
        )
        if TOOL in tools and not answered:
            return self._tokenizer.reply(calls=[(TOOL, ARGUMENTS)])
        last = next((tool for name, tool in tools.items() if name != TOOL), None)
        if last is not None:
            return self._tokenizer.reply(calls=[(last["name"], _filled(last.get("parameters") or {}))])
        return self._tokenizer.reply(_text(chat))


def _text(chat):
    said = json.dumps(chat.messages)
    form = chat.params.get("response_format") or {}
    if form.get("type") == "json_object":
        return '{"value": 42}'
    if "[[ ## " in said:  # the fields that DSPy asks for
        outputs = said[said.rfind("Respond with") :]
        names = [name for name in re.findall(r"\[\[ ## (\w+) ## \]\]", outputs) if name != "completed"]
        return "".join(f"[[ ## {name} ## ]]\n{_of_dspy(name, said)}\n\n" for name in names) + "[[ ## completed ## ]]\n"
    if "json_schema" in form:
        return json.dumps(_filled(form["json_schema"]["schema"]))
    if "<code>" in said:  # smolagents
        return f"Thought: I multiply.\n<code>\n{PYTHON}\n</code>"
    return '{"value": 42}' if "OpenAPI schema" in said else TEXT  # CrewAI


def _of_dspy(name, said):
    called = "[[ ## observation_0" in said
    values = {
        "next_tool_name": "finish" if called else TOOL,
        "next_tool_args": "{}" if called else json.dumps(ARGUMENTS),
    }
    return values.get(name, "42")


def _filled(schema):
    """Return a value for each property of a JSON schema."""
    values = {"integer": 42, "number": 42, "boolean": True, "object": {}, "array": []}
    made = {}
    for name, about in (schema.get("properties") or {}).items():
        made[name] = PYTHON if name == "code" else values.get(about.get("type"), "42")
    return made
