"""Resources servers of NeMo Gym, over HTTP. Needs the extra `nemo-gym`, which does not install NeMo Gym itself.

The name is the URL of a running resources server, and `data` is the JSONL file of its tasks. An episode works as NeMo
Gym's simple agent: it seeds a session, asks the model, posts each tool call to the path /TOOL, and lets the server
verify the whole response. Numbers in the answer to /verify that are not in the task are the parts of the reward.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from osmosis_grpc.environments.environment import Environment
from osmosis_grpc.environments.episode import Episode
from osmosis_grpc.environments.port import EnvironmentFault, EnvironmentTask, Score, position
from osmosis_grpc.environments.spec import EnvironmentSpec
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.protocol.types import Message

try:
    from aiohttp import ClientError, ClientSession, ClientTimeout, CookieJar
except ImportError as error:
    raise MissingExtraError("an environment of NeMo Gym", "nemo-gym") from error

__all__ = ["NemoGym"]

Json = dict[str, Any]


class NemoGym(Environment):
    """One resources server and its tasks."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__(spec)
        data = self.options.pop("data", None)
        if "://" not in spec.name or data is None or self.options:
            raise ValueError(f"{self.name}: the form is nemo-gym:http://HOST:PORT,data=FILE")
        try:
            lines = [line for line in Path(str(data)).read_text(encoding="utf-8").split("\n") if line.strip()]
            self._tasks = [_task(str(number), json.loads(line)) for number, line in enumerate(lines)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.name}: {data} is no file of tasks: {error!r}") from error

    def keys(self) -> Iterator[str]:
        """Yield the line numbers, from 0. Blank lines do not count."""
        return (task.key for task in self._tasks)

    def task(self, key: str) -> EnvironmentTask:
        """Return the task of a line. Its data is the parsed line."""
        return self._tasks[position(key, len(self._tasks))]

    async def play(self, task: EnvironmentTask, episode: Episode) -> Score:
        """Chat until a reply calls no tool or is cut off, and return the score that the server gives."""
        row = task.data
        tools = [_chat_tool(tool) for tool in row["responses_create_params"].get("tools") or []]
        no_limit = ClientTimeout(total=None)  # the episode sets the time limits
        session = ClientSession(cookie_jar=CookieJar(unsafe=True), timeout=no_limit)
        episode.close_with(session.close)

        async def post(path: str, body: Any, *, strict: bool = True) -> str:
            try:
                async with session.post(f"{self.spec.name.rstrip('/')}/{path}", json=body) as answer:
                    text = await answer.text()
            except ClientError as error:
                raise EnvironmentFault(f"/{path}: {error or type(error).__name__}") from error
            if strict and answer.status >= 400:
                raise EnvironmentFault(f"/{path} answered {answer.status}: {text[:200]}")
            return text

        await episode.wait(post("seed_session", row), "/seed_session")
        output, said = list[Json](), list[Message]()
        while True:
            reply = await episode.ask(*said, tools=tools)
            calls, said = reply.message.get("tool_calls") or [], []
            output += _items(reply.message, episode.turns)
            for call in calls:
                function = call["function"]
                try:
                    work = post(function["name"], json.loads(function["arguments"] or "{}"), strict=False)
                    text = await episode.wait(work, f"/{function['name']}")
                except ValueError as error:
                    text = json.dumps({"error": f"Invalid tool call arguments: {error!r}"})
                said.append({"role": "tool", "tool_call_id": call["id"], "content": text})
                output.append({"type": "function_call_output", "call_id": call["id"], "output": text})
            if not calls or reply.finish_reason == "length":
                break
        body = {**row, "response": _response(output, row["responses_create_params"])}
        verdict = json.loads(await episode.wait(post("verify", body), "/verify"))
        own = {name: value for name, value in verdict.items() if name not in {*row, "response", "reward"}}
        parts = {name: value for name, value in own.items() if isinstance(value, int | float)}
        return Score(reward=verdict.get("reward"), parts=parts, facts=own)


def _task(key: str, row: Json) -> EnvironmentTask:
    given = row["responses_create_params"]["input"]
    said = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages = [{"role": message["role"], "content": message["content"]} for message in said]
    return EnvironmentTask(key=key, messages=messages, data=row)


def _chat_tool(tool: Json) -> Json:
    return {"type": "function", "function": {name: tool[name] for name in tool if name not in ("type", "strict")}}


def _items(message: Message, turn: int) -> Iterator[Json]:
    """Yield the output items of a reply, in the format of OpenAI's Responses API."""
    if message.get("content") or not message.get("tool_calls"):
        text = {"type": "output_text", "text": str(message.get("content") or ""), "annotations": []}
        yield {"type": "message", "id": f"msg-{turn}", "role": "assistant", "status": "completed", "content": [text]}
    for call in message.get("tool_calls") or []:
        function = call["function"]
        fields = {"name": function["name"], "arguments": function["arguments"], "status": "completed"}
        yield {"type": "function_call", "id": call["id"], "call_id": call["id"], **fields}


def _response(output: list[Json], params: Json) -> Json:
    fixed = {"id": "resp", "object": "response", "created_at": 0, "model": "policy", "tool_choice": "auto"}
    return {**fixed, "parallel_tool_calls": True, "tools": params.get("tools") or [], "output": output}
