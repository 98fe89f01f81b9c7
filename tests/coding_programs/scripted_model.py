"""A token policy whose model is a script: it edits a file with the tools of a program, and calls a sub-agent."""

import json
import re
from dataclasses import dataclass, field, replace

from osmosis_grpc.policies import ChatRenderer, TokenPolicy
from osmosis_grpc.protocol.errors import ContextLengthExceeded
from osmosis_grpc.protocol.types import ChatRequest
from tests.policies.byte_tokenizer import ByteTokenizer, chatml
from tests.policies.scripted_generator import generated

TASK = "Write the file hello.txt with the text fixed, and say that you are done."
SUB_TASK = "Look into the folder, and say what is there."
BYTES_A_TOKEN = 4
"""Programs take a token for about four characters. The tokens of the script are bytes."""
SUMMARY = "The user wants hello.txt with the text fixed, and some of it is already there."
ASKS_FOR_SUMMARY = re.compile(r"CHECKPOINT|summari[sz]e|(create|write|provide|generate)\b[^.]{0,80}\bsummary", re.I)
SHELL = re.compile("bash|shell|exec|terminal", re.I)
"""The names of tools that run a command and return its output."""
COMMAND_KEYS = ("command", "cmd")
SUB_AGENTS = ("Agent", "Task", "task", "agent")
STEPS = ("printf broken > hello.txt", "printf fixed | tee hello.txt", "cat hello.txt")


def one_system_message(messages, tools, reply_follows):
    """As chatml(), and refuses a system message that is not the first one, as templates of Qwen do."""
    if any(message["role"] == "system" for message in messages[1:]):
        raise ValueError("System message must be at the beginning.")
    return chatml(messages, tools, reply_follows)


@dataclass
class ScriptedModel:
    """Its policy answers each chat with tokens. `sampled` counts them by rollout."""

    context: int | None = None
    """The tokens of the context, of BYTES_A_TOKEN each; None for no limit."""
    steps: tuple = STEPS
    sub_agents: bool = True
    sampled: dict = field(default_factory=dict)
    prompts: dict = field(default_factory=dict)
    """The number of tokens of the first prompt of each rollout."""
    refused: list = field(default_factory=list)
    """The length of each history that did not fit into the context."""

    def __post_init__(self):
        tokenizer = ByteTokenizer()
        tokenizer.template = one_system_message
        self.tokenizer = tokenizer
        self._policy = TokenPolicy(ChatRenderer(tokenizer), self)
        self._chats = {}
        self._done = {}
        """The number of steps that each rollout has taken, also before its history was compacted."""

    async def __call__(self, request: ChatRequest, /):
        self._chats[f"{request.rollout_id}/{request.sample}"] = request
        response = await self._policy(request)
        usage = {name: count // BYTES_A_TOKEN for name, count in response.usage.items() if isinstance(count, int)}
        return replace(response, usage=usage)

    def cancel(self, request):
        self._policy.cancel(request)

    async def generate(self, request):
        chat = self._chats[request.session_id]
        size = len(request.prompt_ids) // BYTES_A_TOKEN
        if self.context is not None and size > self.context:
            self.refused.append(size)
            raise ContextLengthExceeded(size, self.context)
        if chat.tools:
            self.prompts.setdefault(chat.rollout_id, size)
        ids = self._reply(chat)
        self.sampled[chat.rollout_id] = self.sampled.get(chat.rollout_id, 0) + len(ids)
        return generated(ids)

    async def abort(self, request_id):
        pass

    def _reply(self, chat):
        tools = {tool["function"]["name"]: tool["function"] for tool in chat.tools or ()}
        said = json.dumps(chat.messages)
        last = json.dumps(chat.messages[-1:])
        told = any(text in last for text in (TASK, SUB_TASK, SUMMARY))
        begins = bool(tools) and chat.chat_number == 1  # as a history that was compacted does
        summarises = not begins and chat.messages[-1]["role"] == "user" and ASKS_FOR_SUMMARY.search(last) and not told
        if not tools or summarises:
            return self.tokenizer.reply(SUMMARY if summarises else _file_listing(said))
        if SUB_TASK in json.dumps([m for m in chat.messages if m["role"] == "user"]):
            looked = any(message["role"] == "tool" for message in chat.messages)
            return self.tokenizer.reply("There is hello.txt.") if looked else self._call(tools, "ls")
        steps = list(self.steps)
        sub_agent = next((name for name in SUB_AGENTS if name in tools), None)
        if self.sub_agents and sub_agent is not None:
            steps.insert(1, SUB_TASK)
        done = self._done.get(chat.rollout_id, 0)
        if done >= len(steps):
            return self._last(tools)
        self._done[chat.rollout_id] = done + 1
        if steps[done] == SUB_TASK:
            return self.tokenizer.reply(calls=[(sub_agent, _arguments(tools[sub_agent], SUB_TASK))])
        return self._call(tools, steps[done])

    def _call(self, tools, command):
        commands = [name for name, tool in tools.items() if _command_key(tool)]
        name = next((name for name in commands if SHELL.search(name)), commands[0])
        return self.tokenizer.reply(calls=[(name, _arguments(tools[name], command))])

    def _last(self, tools):
        if list(tools) == ["bash"] and "COMPLETE_TASK" in json.dumps(self._chats, default=str):
            return self._call(tools, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
        finish = next((name for name in tools if name in ("finish", "submit")), None)
        if finish is not None:
            return self.tokenizer.reply(calls=[(finish, _arguments(tools[finish], "done"))])
        return self.tokenizer.reply("It is done.")


def _properties(tool):
    return (tool.get("parameters") or {}).get("properties") or {}


def _command_key(tool):
    return next((key for key in COMMAND_KEYS if key in _properties(tool)), None)


def _arguments(tool, text):
    """The required arguments of a call, and its command or its prompt."""
    made, required = {}, (tool.get("parameters") or {}).get("required") or ()
    for name, schema in _properties(tool).items():
        if name in (*COMMAND_KEYS, "prompt"):
            made[name] = ["bash", "-lc", text] if schema.get("type") == "array" else text
        elif name == "subagent_type":
            made[name] = "general" if "- general:" in str(tool) else "general-purpose"
        elif name in required:
            kind = schema.get("type")
            made[name] = {"boolean": False, "integer": 10, "number": 10}.get(kind, (schema.get("enum") or ["go on"])[0])
    return made


def _file_listing(said):
    """What a program without tools takes for an edit of a file, as Aider does."""
    fence = re.search("`{3,}", said)
    return f"hello.txt\n{fence[0] if fence else '```'}\nfixed\n{fence[0] if fence else '```'}\n"
