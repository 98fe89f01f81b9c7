"""validate --run: one rollout of an agent loop in this process, and what it shows.

The real engine, with a mock for the model: it calls tools where the agent offers any, and else
repeats the question. Heavy imports stand in the functions.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from osmosis_grpc.agent.ports import ChatModel
    from osmosis_grpc.agent.validator import Finding, Place
    from osmosis_grpc.types import ChatRequest, ChatResponse, Completion, Outcome

QUESTION = "What is (2 + 3) * 4?"
"""What --run asks."""

ANSWER = "20"
"""The label, and metadata's ground_truth."""

AGENT_TIMEOUT = 30.0
"""Seconds that --run gives a rollout."""

GRACE = 5.0
"""Seconds after that in which the rollout has to end; an agent that blocks the event loop does not."""

BLOCKED = 0.2
"""Seconds that an agent may block the event loop."""

HINTS = {
    "BLOCKING_CALL": "use await asyncio.to_thread(...) for code that blocks, or a library that is async",
    "RESULT_NOT_RETURNED": "end run with return ctx.complete(messages) or return ctx.error(text)",
    "NON_FINITE_REWARD": "make the reward a finite number, or None to leave it to a grader",
    "TOOL_CALL_UNANSWERED": "append a tool message with the call's id for every call of a reply",
    "RUN_FAILED": "mend what it raised, or give up on purpose with return ctx.error(text)",
}
"""What to do, by code of --run. The other codes are in osmosis_grpc.agent.validator."""


class _Watched:
    """An agent loop that remembers how its run went, and the mock that answers it."""

    def __init__(self, agent_loop: Any) -> None:
        from osmosis_grpc.policies import EchoPolicy, ToolCallingMock

        self.name = agent_loop.name
        self.get_tools = agent_loop.get_tools
        self.ended = agent_loop.ended
        self.result: Any = None
        self.returned = False
        self.error: BaseException | None = None
        self.blocked_at: Callable[[], str] = lambda: ""
        self._run = agent_loop.run
        self._tools: Any = ()
        self._models: dict[bool, ChatModel] = {True: ToolCallingMock(), False: EchoPolicy()}

    async def run(self, ctx: Any) -> Any:
        self._tools = ctx.tools
        try:
            self.result = await self._run(ctx)
        except BaseException as error:
            self.error = error
            raise
        self.returned = True
        return self.result

    async def model(self, request: "ChatRequest", /) -> "ChatResponse":
        tools = self._tools if request.tools is None else request.tools
        return await self._models[bool(tools)](request)


class _Pulse:
    """Measures for how long the event loop was blocked at most."""

    EVERY = 0.005

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        self._loop = loop
        self._last = loop.time()
        self.longest = 0.0
        self._beat()

    def _beat(self) -> None:
        now = self._loop.time()
        self.longest = max(self.longest, now - self._last)
        self._last = now
        self._next = self._loop.call_later(self.EVERY, self._beat)

    def stop(self) -> None:
        self._next.cancel()
        self._beat()
        self._next.cancel()


def try_out(agent_loop: Any) -> "list[Finding]":
    """What one rollout of a valid agent loop shows."""
    import concurrent.futures

    from osmosis_grpc.agent.validator import Finding, make, one_line, place_of
    from osmosis_grpc.cli.aside import run_aside
    from osmosis_grpc.errors import OsmosisRolloutError

    watched = _Watched(agent_loop)
    place = place_of(agent_loop.run, type(agent_loop))
    try:
        completion, blocked = run_aside(lambda: _rollout(watched), AGENT_TIMEOUT + GRACE)
    except concurrent.futures.TimeoutError:
        text = f"the event loop is still blocked after {AGENT_TIMEOUT + GRACE:g} s"
        return [_blocking(text, watched.blocked_at(), place)]
    except (OsmosisRolloutError, SystemExit) as error:
        return [make("GET_TOOLS_EXCEPTION", one_line(error), place_of(agent_loop.get_tools, type(agent_loop)))]
    findings = [Finding(code, text, HINTS[code], *(at or place)) for code, text, at in _shown(watched, completion)]
    if blocked > BLOCKED and watched.blocked_at():
        findings.append(_blocking(f"the event loop was blocked for {blocked:.2f} s", watched.blocked_at(), place))
    return findings


async def _rollout(watched: _Watched) -> "tuple[Completion, float]":
    """The completion of one rollout, and for how long it blocked the event loop."""
    import asyncio

    from osmosis_grpc.engine import Engine, EngineConfig, Peer
    from osmosis_grpc.types import InitRequest, Outcome, RolloutRequest

    loop = asyncio.get_running_loop()
    done: asyncio.Future[Completion] = loop.create_future()

    async def sink(completion: "Completion", /) -> "Outcome":
        if not done.done():
            done.set_result(completion)
        return Outcome.RECORDED

    # The watchdog is sure to see what blocks for twice its limit.
    config = EngineConfig(max_concurrent=1, stop_again_after=(0.2, 0.5), blocked_after=BLOCKED / 2)
    agent_loop: Any = watched
    async with Engine([agent_loop], config) as engine:
        watched.blocked_at = lambda: engine.watchdog.last
        pulse = _Pulse(loop)
        messages = [{"role": "user", "content": QUESTION}]
        request = RolloutRequest(
            rollout_id="validate", messages=messages, label=ANSWER, metadata={"ground_truth": ANSWER},
            agent_timeout=AGENT_TIMEOUT,
        )  # fmt: skip
        try:
            await engine.init(InitRequest(request=request), owner="", peer=Peer(watched.model, sink))
            completion = await done
        finally:
            pulse.stop()
    return completion, pulse.longest


def _blocking(text: str, where: str, place: "Place") -> "Finding":
    """`where` is what the watchdog says: file:line in function, or nothing."""
    from osmosis_grpc.agent.validator import Finding

    found = re.fullmatch(r"(.*):(\d+) in .*", where, re.DOTALL)
    if found:
        text, place = f"{text} at {where}", (found[1], int(found[2]))
    return Finding("BLOCKING_CALL", text, HINTS["BLOCKING_CALL"], *place)


def _shown(watched: _Watched, completion: "Completion") -> "Iterator[tuple[str, str, Place | None]]":
    """What a rollout's end shows: code, message, and the place where it is not that of run."""
    from osmosis_grpc.agent.results import RolloutResult
    from osmosis_grpc.agent.validator import one_line, place_of_error
    from osmosis_grpc.types import CompletionStatus
    from osmosis_grpc.types.completion import is_reward

    result, error, status = watched.result, watched.error, completion.status
    text = completion.failure.message if completion.failure else str(status)
    failed, is_result = status is CompletionStatus.FAILED, isinstance(result, RolloutResult)
    completed = is_result and result.status == "COMPLETED"
    if failed and watched.returned and not is_result:
        yield "RESULT_NOT_RETURNED", text, None
    elif failed and completed and result.reward is not None and not is_reward(result.reward):
        yield "NON_FINITE_REWARD", text, None
    elif status is not CompletionStatus.COMPLETED:
        at = place_of_error(error) if error else (None, None)
        yield "RUN_FAILED", f"run raised {one_line(error)}" if failed and error else text, at if at[0] else None
    if completed:
        for unanswered in _unanswered(result.final_messages):
            yield "TOOL_CALL_UNANSWERED", unanswered, None


def _unanswered(messages: Any) -> Iterator[str]:
    """The tool calls of a conversation that no tool message answers."""
    known = [_mapping(message) for message in messages] if isinstance(messages, list | tuple) else []
    answered = {str(message.get("tool_call_id")) for message in known if message.get("role") == "tool"}
    for index, message in enumerate(known):
        calls = message.get("tool_calls") if message.get("role") == "assistant" else None
        for call in map(_mapping, calls if isinstance(calls, list | tuple) else ()):
            if str(call.get("id")) not in answered:
                name = _mapping(call.get("function")).get("name")
                yield f"final_messages[{index}] calls {name} ({call.get('id')}), and no tool message answers it"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
