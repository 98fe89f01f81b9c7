"""The agent of the conformance suite. The request tells it what to do; docs/conformance.md describes the steps."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis_grpc.agent.request import RolloutRequest
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.protocol.types import ChatPurpose

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "a + b",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}
"""The tool that is listed if a request names no tools."""
Step = Mapping[str, Any]


class ConformanceAgent(RolloutAgentLoop):
    """Does the steps in the metadata of its request."""

    name = "conformance"
    replayable = True

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        """Return the tools of the request. Raises RuntimeError if the request asks for an error."""
        tools = request.metadata.get("tools", [ADD])
        if tools == "raise":
            raise RuntimeError("the request asks for tools that cannot be listed")
        return list(tools)

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Do the steps of the request, and return the result."""
        return await _Run(ctx).result()


class _Run:
    """One rollout. Each sample has one conversation."""

    def __init__(self, ctx: RolloutContext) -> None:
        self._ctx = ctx
        self._conversations: dict[str, list[Any]] = {}
        self._histories: dict[tuple[str, int], list[Any]] = {}
        """The history of each answered chat, including its reply."""

    async def result(self) -> RolloutResult:
        for step in self._ctx.request.metadata.get("script", [{"chat": None}]):
            if "end" in step:
                return self._end(step["end"] or {})
            await self._do(step)
        return self._end({})

    async def _do(self, step: Step) -> None:
        await next(_STEPS[name] for name in step if name in _STEPS)(self, step)

    def _end(self, given: Step) -> RolloutResult:
        messages = self._conversations.get("main", list(self._ctx.request.messages))
        return self._ctx.complete(messages, given.get("finish_reason", "stop"), reward=given.get("reward"))

    def _sample(self, step: Step) -> list[Any]:
        """Return the conversation of the step's sample. Begin the sample if it is new."""
        name = step.get("sample", "main")
        if name not in self._conversations:
            if "policy" in step:
                self._ctx.add_sample(name, policy=step["policy"])
            self._conversations[name] = list(self._ctx.request.messages)
        return self._conversations[name]

    async def _chat(self, step: Step) -> None:
        conversation = self._sample(step)
        if step["chat"] is not None:
            conversation.append({"role": "user", "content": step["chat"]})
        sample = step.get("sample", "main")
        history = list(conversation)
        purpose = ChatPurpose.JUDGE if step.get("purpose") == "judge" else ChatPurpose.POLICY
        try:
            async with asyncio.timeout(step.get("within")):
                reply = await self._ctx.chat(
                    history, sample=sample, purpose=purpose, tools=step.get("tools"), **step.get("sampling", {})
                )
        except TimeoutError:
            return
        except CallError:
            if not step.get("catch"):
                raise
            return
        conversation.append(reply.message)
        self._histories[sample, reply.chat_number] = [*history, reply.message]

    async def _message(self, step: Step) -> None:
        self._sample(step).append(step["message"])

    async def _back_to(self, step: Step) -> None:
        name = step.get("sample", "main")
        before = self._histories[name, step["back_to"]] if step["back_to"] else self._ctx.request.messages
        self._conversations[name] = list(before)

    async def _at_once(self, step: Step) -> None:
        await asyncio.gather(*(self._do(each) for each in step["at_once"]))

    async def _sleep(self, step: Step) -> None:
        await asyncio.sleep(step["sleep"])

    async def _reward(self, step: Step) -> None:
        where = {"sample": step.get("sample", "main"), "chat": step.get("chat", 0), "name": step.get("name", "")}
        self._ctx.set_reward(step["reward"], **where)

    async def _log(self, step: Step) -> None:
        self._ctx.log_event("log", **step["log"])

    async def _raise(self, step: Step) -> None:
        raise RuntimeError(step["raise"])


_STEPS: dict[str, Callable[[_Run, Step], Awaitable[None]]] = {
    "reward": _Run._reward,  # before `chat`: it may name the chat
    "chat": _Run._chat,
    "message": _Run._message,
    "back_to": _Run._back_to,
    "at_once": _Run._at_once,
    "sleep": _Run._sleep,
    "log": _Run._log,
    "raise": _Run._raise,
}

agent = ConformanceAgent()
"""The agent loop for `serve -m osmosis_grpc.testing.conformance:agent`."""
