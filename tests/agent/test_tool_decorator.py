"""@tool: the schema, the check of arguments, timeouts, and ctx.run_tools."""

import asyncio
import json
import threading
import time
from dataclasses import replace
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext
from osmosis_grpc.agent.sync_context import SyncRolloutContext
from osmosis_grpc.agent.tool_decorator import THREADS
from osmosis_grpc.agent.validator import validate_agent_loop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.protocol.types import OutcomeStatus, events
from osmosis_grpc.testing import collect_rollout, run_rollout
from osmosis_grpc.tools import Tool, tool


class Point(BaseModel):
    """A point of a plane."""

    x: int
    y: int = 0


@tool
async def add(a: float, b: float = 2, *, mode: Literal["exact", "rounded"] = "exact", at: Point | None = None) -> float:
    """Adds two numbers.

    The sum is exact.

    Args:
        a: the first
            number
        b (float): the second

    Returns:
        the sum
    """
    return a + b


@tool(name="wait", description="Waits.", timeout=0.05)
def pause(seconds: Annotated[float, Field(ge=0, description="how long")]) -> str:
    time.sleep(seconds)  # a tool that blocks
    return threading.current_thread().name


@tool
async def who(greeting: str, ctx: RolloutContext) -> dict[str, str]:
    """Greets the rollout."""
    return {"text": f"{greeting} {ctx.request.rollout_id}"}


@tool
def sync_who(ctx: SyncRolloutContext | None = None) -> str:
    """Asks the model from a thread."""
    assert ctx is not None
    return str(ctx.chat([{"role": "user", "content": "who?"}], sample="inner").content)


@tool
async def forgets(text: str) -> None:
    """Does not await the call of another tool."""
    return add(1)  # type: ignore[return-value]


class Odd:
    def method(self, text: str) -> str:
        return text

    @staticmethod
    def takes_odd(odd: "Odd") -> None:
        pass

    @staticmethod
    def plain_with_the_async_context(ctx: RolloutContext) -> None:
        pass


@tool
def fails(text: str) -> None:
    """Raises an error."""
    raise ValueError(text)


def test_the_schema_is_made_of_types_and_docstring():
    function = add.openai_schema()["function"]
    assert (function["name"], function["description"]) == ("add", "Adds two numbers. The sum is exact.")
    parameters = function["parameters"]
    assert parameters["required"] == ["a"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["a"] == {"type": "number", "description": "the first number"}
    assert parameters["properties"]["b"] == {"type": "number", "default": 2, "description": "the second"}
    assert parameters["properties"]["mode"]["enum"] == ["exact", "rounded"]
    assert "Point" in parameters["$defs"]
    assert who.openai_schema()["function"]["parameters"]["properties"].keys() == {"greeting"}
    named = pause.openai_schema()["function"]
    assert (named["name"], named["description"]) == ("wait", "Waits.")
    assert named["parameters"]["properties"]["seconds"]["description"] == "how long"


def with_default(value, about=""):
    def scale(by: float | bool | list[int] = value) -> str:
        return repr(by)

    scale.__doc__ = f"Scales.\n\nArgs:\n    by: {about}"
    return tool(scale)


async def test_functions_of_one_name_have_schemas_and_defaults_of_their_own():
    made = [with_default(value, f"about {value}") for value in (1, 1.0, True, [1], 1)]
    made[0].openai_schema()["function"]["parameters"]["properties"].clear()
    seen = [each.openai_schema()["function"]["parameters"]["properties"] for each in made]
    assert [each and repr(each["by"]["default"]) for each in seen] == [{}, "1.0", "True", "[1]", "1"]
    assert [each and each["by"]["description"] for each in seen[1:]] == [f"about {n}" for n in (1.0, True, [1], 1)]
    assert [await each.run({}) for each in made] == ["1", "1.0", "True", "[1]", "1"]


async def test_arguments_get_the_types_of_the_parameters():
    assert add.check({"a": "3", "at": {"x": "1"}}) == {"a": 3.0, "b": 2, "mode": "exact", "at": Point(x=1)}
    assert await add.run({"a": "3"}) == 5.0
    assert await add(1, 2) == 3, "calling the tool calls the function"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "a: is missing"),
        ({"a": 1, "c": 2}, "c: is not a parameter"),
        ({"a": "x"}, "a: Input should be a valid number"),
        ({"a": 1, "mode": "no"}, "mode: Input should be 'exact' or 'rounded'"),
        ({"a": 1, "at": {}}, "at.x: Field required"),
    ],
)
async def test_wrong_arguments_name_the_parameter(arguments, problem):
    with pytest.raises(ToolArgumentError, match=problem) as caught:
        await add.run(arguments)
    assert caught.value.tool_name == "add"


async def test_a_sync_tool_runs_on_a_thread_and_has_a_timeout():
    assert await pause.run({"seconds": 0}) != threading.current_thread().name
    with pytest.raises(TimeoutError, match=r"wait took longer than 0\.05 s"):
        await pause.run({"seconds": 1})

    @tool
    async def own() -> None:
        """Raises a TimeoutError of its own."""
        raise TimeoutError("the database")

    with pytest.raises(TimeoutError, match="the database"):
        await own.run({})


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda a: a, "'a' has no type: write a: str"),
        (lambda *args: args, r"\*args"),
        (lambda **kwargs: kwargs, r"\*\*kwargs"),
        (Odd.method, r"for a method, make the tool in __init__: self.tools = \(tool\(self.method\),\)"),
        (Odd.takes_odd, "the type of the parameter 'odd', .*Odd.*, has no JSON schema"),
        (Odd.plain_with_the_async_context, "a plain def gets a SyncRolloutContext; give 'ctx' this type"),
    ],
)
def test_a_function_that_a_model_cannot_call_is_refused(function, problem):
    with pytest.raises(TypeError, match=problem):
        Tool(function)


class Agent(RolloutAgentLoop):
    """Runs the calls of each reply."""

    name = "agent"
    tools = (add, pause, who, fails, sync_who, forgets)

    async def run(self, ctx):
        return ctx.complete(await ctx.tool_loop(ctx.request.messages), reward=1.0)


def calls(*wanted):
    """A policy whose first reply has these calls."""

    def reply(request):
        if request.sample == "inner":
            return answer(request, "hello from the model")
        if request.chat_number > 1:
            return answer(request, "done")
        listed = [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(wanted)
        ]
        return answer(request, {"role": "assistant", "content": None, "tool_calls": listed})

    return reply


async def test_run_tools_runs_all_calls_and_tells_the_model_what_went_wrong():
    policy = calls(
        ("add", '{"a": 1, "b": 3}'),
        ("who", '{"greeting": "hello"}'),
        ("nobody", "{}"),
        ("add", '{"a": "x"}'),
        ("add", "{not json"),
        ("fails", '{"text": "on purpose"}'),
        ("wait", '{"seconds": 1}'),
        ("sync_who", "{}"),
        ("forgets", '{"text": "x"}'),
    )
    outcome, trail = await collect_rollout(Agent(), policy, [{"role": "user", "content": "?"}], rollout_id="r1")
    assert outcome.status is OutcomeStatus.COMPLETED
    texts = [message["content"] for message in outcome.messages if message["role"] == "tool"]
    assert texts[0] == "4.0"
    assert json.loads(texts[1]) == {"text": "hello r1"}
    assert texts[2] == "Error: there is no tool 'nobody'; the tools are: add, wait, who, fails, sync_who, forgets"
    assert texts[3].startswith("Error: ")
    assert "a: Input should be a valid number" in texts[3]
    assert texts[4].startswith("Error: Invalid JSON arguments: ")
    assert "on purpose" in texts[5]
    assert "wait took longer than 0.05 s" in texts[6]
    assert texts[7] == "hello from the model"
    assert texts[8] == "Error: the tool forgets returned a coroutine: write `await` before the call"
    returned = [event.kind for event in trail if isinstance(event.kind, events.ToolReturned)]
    assert sorted(kind.tool_call_id for kind in returned) == [f"c{n}" for n in range(9)]
    assert outcome.metrics.num_tool_calls == 9


async def test_tools_of_one_rollout_are_those_that_its_get_tools_returned():
    class Own(Agent):
        name = "own"

        async def get_tools(self, request):
            secret = request.rollout_id

            @tool
            async def tell() -> str:
                """Tells the secret."""
                return secret

            return [tell]

    policy = calls(("tell", "{}"))
    results = await asyncio.gather(*(run_rollout(Own(), policy, rollout_id=f"r{n}") for n in range(3)))
    told = [next(m["content"] for m in result.messages if m["role"] == "tool") for result in results]
    assert told == ["r0", "r1", "r2"]


async def test_sync_tools_that_never_return_are_logged_and_stop_no_other_tool(caplog):
    release = threading.Event()

    @tool(timeout=0.05)
    def stuck() -> None:
        """Never returns."""
        release.wait(60)

    try:
        results = await asyncio.gather(*(stuck.run({}) for _ in range(THREADS + 8)), return_exceptions=True)
        assert {str(error) for error in results} == {"stuck took longer than 0.05 s"}
        assert await asyncio.wait_for(pause.run({"seconds": 0}), 20)
        assert "the tool stuck has run for 0.05 s; it keeps its thread until it returns" in caplog.text
    finally:
        release.set()


@pytest.mark.slow
async def test_the_timeout_of_a_sync_tool_begins_with_its_function():
    together = threading.Barrier(THREADS, timeout=20)

    @tool(timeout=2.0)
    def slow(index: int) -> int:
        """Is slow."""
        together.wait()
        time.sleep(0.6)  # the time that the function needs
        return index

    count = 4 * THREADS  # the last ones wait for a thread longer than their timeout
    assert await asyncio.gather(*(slow.run({"index": n}) for n in range(count))) == list(range(count))


def test_the_validator_accepts_tools():
    result = validate_agent_loop(Agent())
    assert (result.findings, result.tool_count) == ((), 6)


async def test_a_tool_loop_ends_after_max_turns():
    class Endless(Agent):
        name = "endless"

        async def run(self, ctx):
            messages = await ctx.tool_loop(ctx.request.messages, max_turns=3, temperature=0.5)
            return ctx.complete(messages, reward=float(len(messages)))

    def policy(request):
        assert request.params == {"temperature": 0.5}
        call = {
            "id": f"c{request.chat_number}",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a": 1}'},
        }
        return answer(request, {"role": "assistant", "content": None, "tool_calls": [call]})

    outcome = await run_rollout(Endless(), policy, [{"role": "user", "content": "?"}])
    assert outcome.metrics.num_llm_calls == 3
    assert [message["role"] for message in outcome.messages] == ["user", *["assistant", "tool"] * 3]


async def test_a_tool_loop_tells_the_model_about_a_call_that_could_not_be_read():
    class Loop(Agent):
        name = "loop"

        async def run(self, ctx):
            return ctx.complete(await ctx.tool_loop(ctx.request.messages), reward=1.0)

    def policy(request):
        if request.chat_number == 1:
            cut = answer(request, {"role": "assistant", "content": "<tool_call>"})
            return replace(cut, extra={"unread_tool_calls": ["unclosed_block"]})
        return answer(request, {"role": "assistant", "content": "done"})

    outcome = await run_rollout(Loop(), policy, [{"role": "user", "content": "?"}])
    assert [message["role"] for message in outcome.messages] == ["user", "assistant", "user", "assistant"]
    assert "unclosed_block" in outcome.messages[2]["content"]
    assert outcome.metrics.num_llm_calls == 2
