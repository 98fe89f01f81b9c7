"""The agents of the simulation. Their metadata is a script, so a rollout's plan decides what its agent does.

Scripts: `chats` in the main conversation, `work` seconds between them, `aside` chats of a second conversation,
`branch` (a second continuation of an earlier history), `rest` seconds before the end, `parts` (rewards by name), and
`wild`, a misbehaviour.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis_grpc.agent.tool_calls import create_tool_result, execute_tool_calls, get_tool_call_info
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.protocol.types import RolloutRequest
from tests.simulation.history import History

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


class Passenger(RolloutAgentLoop):
    """Ends where its server ends. `next_run` numbers the runs of all agents."""

    name = "passenger"

    def __init__(self, server: str, history: History, next_run: Callable[[], int]) -> None:
        self._server, self._history, self._next_run = server, history, next_run

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        return [TOOL]

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        request, run = ctx.request, self._next_run()
        rollout = request.rollout_id, request.attempt
        note = self._history.note
        note(self._server, "run", *rollout, agent=self.name, run=run)
        script = _Script(self._server, self._history, ctx, run)
        try:
            result = await script.play(dict(request.metadata))
        except asyncio.CancelledError:
            note(self._server, "stopped agent", *rollout, run=run)
            raise
        except Exception as error:
            note(self._server, "raised", *rollout, error=type(error).__name__, run=run)
            raise
        note(self._server, "returned", *rollout, run=run, reward=getattr(result, "reward", None))
        return result


class Traveller(Passenger):
    """Goes on at the server's next start."""

    name = "traveller"
    replayable = True


class _Script:
    """One run of one agent."""

    def __init__(self, server: str, history: History, ctx: RolloutContext, run: int) -> None:
        self._server, self._history, self._ctx, self._run = server, history, ctx, run
        self._chats: Counter[str] = Counter()

    async def play(self, script: dict[str, Any]) -> RolloutResult:
        ctx, wild = self._ctx, script.get("wild")
        messages: list[Any] = list(ctx.request.messages)
        if wild == "nothing":
            return ctx.complete(messages, reward=0.0)
        aside: asyncio.Task[str] | None = None
        try:
            for number in range(1, script["chats"] + 1):
                if number == 1 and script.get("aside"):
                    aside = asyncio.create_task(self._aside(script["aside"], str(messages[-1]["content"])))
                if number == script.get("branch"):
                    await self._chat([*messages, {"role": "user", "content": "and on the other hand?"}], "main")
                if wild == "logs":
                    for line in range(20):
                        ctx.log_event("noise", line=line, text="x" * 200)
                if wild == "twice" and number == 1:
                    other = [*messages, {"role": "user", "content": "both at once"}]
                    reply, _ = await asyncio.gather(self._chat(messages, "main"), self._chat(other, "main"))
                else:
                    reply = await self._chat(messages, "main", swallow=wild == "swallow")
                if reply is None:
                    continue
                messages.append(reply.message)
                if reply.has_tool_calls:
                    messages += await execute_tool_calls(reply.tool_calls, _add)
                else:
                    messages.append({"role": "user", "content": f"and then, after {number}?"})
                if script["work"]:
                    await asyncio.sleep(script["work"])  # the clock is simulated
            if aside is not None:
                messages.append({"role": "user", "content": await aside})
        finally:
            if aside is not None:
                aside.cancel()
        return await self._end(messages, script)

    async def _end(self, messages: list[Any], script: dict[str, Any]) -> RolloutResult:
        ctx, wild = self._ctx, script.get("wild")
        if script.get("rest"):
            await asyncio.sleep(script["rest"])  # the clock is simulated
        if wild == "raise":
            raise RuntimeError("the agent gives up")
        if wild == "error":
            request = ctx.request
            self._history.note(
                self._server, "raised", request.rollout_id, request.attempt, error="ctx.error", run=self._run
            )
            return ctx.error("the agent cannot", messages)
        if wild == "hang":
            await asyncio.sleep(10_000.0)
        if wild == "ignore":
            await self._ignore_cancels(60.0)
        if script.get("parts"):
            ctx.set_reward(0.25, name="format")
        if wild == "bad reward":
            return ctx.complete(messages, reward=float("nan"))
        return ctx.complete(messages, reward=float(sum(len(json.dumps(message)) for message in messages) % 1000))

    async def _ignore_cancels(self, seconds: float) -> None:
        """Goes on for some time, whatever happens."""
        loop, request = asyncio.get_running_loop(), self._ctx.request
        until = loop.time() + seconds
        while loop.time() < until:
            try:
                await asyncio.sleep(until - loop.time())  # the clock is simulated
            except asyncio.CancelledError:
                rollout = request.rollout_id, request.attempt
                self._history.note(self._server, "cancel ignored", *rollout, run=self._run)

    async def _aside(self, chats: int, about: str) -> str:
        messages: list[Any] = [{"role": "user", "content": f"what of this: {about}"}]
        for _ in range(chats):
            reply = await self._chat(messages, "aside")
            messages += [reply.message, {"role": "user", "content": f"go on: {reply.content}"}]
        return str(messages[-1]["content"])

    async def _chat(self, messages: list[Any], sample: str, *, swallow: bool = False) -> Any:
        request, note = self._ctx.request, self._history.note
        self._chats[sample] += 1
        name = {"sample": sample, "chat": self._chats[sample], "run": self._run}
        note(self._server, "asked", request.rollout_id, request.attempt, **name)
        try:
            reply = await self._ctx.chat(messages, sample=sample)
        except Exception as error:
            kind = type(error).__name__
            note(self._server, "chat raised", request.rollout_id, request.attempt, error=kind, **name)
            if swallow and isinstance(error, CallError):
                return None
            raise
        note(self._server, "got", request.rollout_id, request.attempt, draw=reply.extra.get("draw"), **name)
        return reply


async def _add(call: Any) -> Any:
    call_id, _, numbers = get_tool_call_info(call)
    await asyncio.sleep(0.001)  # a tool takes a moment; the clock is simulated
    return create_tool_result(call_id, str(numbers["a"] + numbers["b"]))
