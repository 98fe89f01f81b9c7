"""What an agent loop holds in its hands while it runs."""

import dataclasses
import enum
import json

import numpy as np
import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.context import MAX_LATENCY_MS
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.types import OutcomeStatus, events, jsontext
from osmosis_grpc.protocol.wire.outcome import outcome_to_wire
from osmosis_grpc.testing import collect_rollout

USER = {"role": "user", "content": "hello"}


class Scripted(RolloutAgentLoop):
    """Does with its context what it is given."""

    name = "scripted"

    def __init__(self, use, tools=()):
        self.use = use
        self.tools = list(tools)

    def get_tools(self, request):
        return self.tools

    async def run(self, ctx):
        result = self.use(ctx)
        return result if result is not None else ctx.complete([USER])


async def run_once(use, tools=(), **request):
    """The outcome, and what was logged."""
    outcome, seen = await collect_rollout(Scripted(use, tools), EchoPolicy(), [USER], **request)
    return outcome, [event.kind for event in seen if isinstance(event.kind, events.Logged)]


async def logged(*names, **data):
    """The one event that a log_event made."""
    outcome, found = await run_once(lambda ctx: ctx.log_event(*names, **data))
    assert outcome.status is OutcomeStatus.COMPLETED
    assert len(found) == 1
    return found[0]


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Odd:
    def __repr__(self):
        return "<odd>"


async def test_json_is_logged_as_it_is():
    data = {"a": None, "b": True, "c": 1, "d": 1.5, "e": "é", "f": [1, [2]], "g": {"h": {"i": []}}}
    kind = await logged("step", **data)
    assert (kind.name, dict(kind.data)) == ("step", data)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (Odd(), "<odd>"),
        (b"a", "a"),
        (b"\xff", "b'\\xff'"),
        (Color.RED, "red"),
        (Level.HIGH, 3),
        (1j, "1j"),
        ((1, 2), [1, 2]),
        ({1}, [1]),
        ({1: 2, None: 3}, {"1": 2, "null": 3}),
        ([Odd(), float("nan")], ["<odd>", "nan"]),
        ("\ud800", "\ufffd"),
        ({"\ud800": "\ud800"}, {"\ufffd": "\ufffd"}),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (range(2), [0, 1]),
        (10**5000, None),
    ],
    ids=lambda value: repr(value)[:30] if not isinstance(value, int) or value < 10 else "5,000 digits",
)
async def test_what_is_not_json_is_logged_as_its_repr(value, expected):
    kind = await logged("step", value=value)
    text = jsontext.render(dict(kind.data))
    text.encode()
    if expected is not None:
        assert json.loads(text) == {"value": expected}


async def test_a_value_without_a_bottom_is_cut():
    circle = []
    circle.append(circle)
    kind = await logged("step", circle=circle)
    assert jsontext.render(dict(kind.data)).startswith('{"circle":[[[')
    jsontext.copy(dict(kind.data), "data")


async def test_a_value_without_a_repr_does_not_end_the_rollout():
    class Worse:
        def __repr__(self):
            raise RuntimeError("no repr")

    assert "value" in (await logged("step", value=Worse())).data


async def test_later_changes_do_not_reach_the_event():
    data = {"list": [1]}

    def use(ctx):
        ctx.log_event("step", data=data)
        data["list"].append(2)

    _, found = await run_once(use)
    assert dict(found[0].data) == {"data": {"list": [1]}}


async def test_the_name_stands_beside_data_of_any_name():
    names = {"event_name": 1, "name": 2, "self": 3, "data": 4, "kind": 5, "event": 6}
    kind = await logged("step", **names)
    assert (kind.name, dict(kind.data)) == ("step", names)


@pytest.mark.parametrize(("name", "expected"), [("", ""), (5, "5"), ("é", "é"), ("\ud800", "\ufffd")])
async def test_a_name_becomes_text_that_can_travel(name, expected):
    assert (await logged(name)).name.encode() == expected.encode()


# What it holds


async def test_the_request_and_the_tools_are_the_agents_own():
    tool = {"type": "function", "function": {"name": "add"}}
    seen = []

    def use(ctx):
        seen.append((list(ctx.request.messages), dict(ctx.request.metadata), list(ctx.tools)))
        ctx.request.messages.append(USER)
        ctx.request.metadata["added"] = 1
        ctx.tools.append(tool)

    agent = Scripted(use, [tool])
    messages, metadata = [dict(USER)], {"kept": 1}
    for _ in range(2):
        outcome, _ = await collect_rollout(agent, EchoPolicy(), messages, metadata=metadata)
        assert outcome.status is OutcomeStatus.COMPLETED
    assert seen == [([USER], {"kept": 1}, [tool])] * 2
    assert (messages, metadata) == ([USER], {"kept": 1})


async def test_complete_says_it_all():
    def use(ctx):
        return ctx.complete([USER], finish_reason="length", reward=0.25, extra_fields={"a": [1]})

    outcome, _ = await run_once(use)
    assert (outcome.status, outcome.finish_reason, outcome.reward) == ("COMPLETED", "length", 0.25)
    assert (outcome.messages, outcome.extra_fields, outcome.failure) == ([USER], {"a": [1]}, None)


async def test_error_gives_up():
    outcome, _ = await run_once(lambda ctx: ctx.error("too hard", [USER]))
    assert (outcome.status, outcome.finish_reason, outcome.reward) == ("FAILED", "error", None)
    assert (outcome.failure.boundary, outcome.failure.message) == ("agent", "too hard")
    assert outcome.failure.retryable is False
    assert outcome.messages == [USER]


async def test_recorded_tool_calls_are_counted():
    def use(ctx):
        ctx.record_tool_call()
        ctx.record_tool_call(latency_ms=20)
        ctx.record_tool_call(np.float32(22.0))

    outcome, _ = await run_once(use)
    assert outcome.metrics.num_tool_calls == 3
    assert outcome.metrics.tool_latency_ms == pytest.approx(42.0)


@pytest.mark.parametrize("latency", [float("nan"), float("inf"), float("-inf"), -1e308, 1e300, -1.0])
async def test_a_latency_that_is_none_is_a_value_error(latency):
    outcome, _ = await run_once(lambda ctx: ctx.record_tool_call(latency))
    assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "agent")
    assert "latency_ms" in outcome.failure.message
    assert np.isfinite(dataclasses.astuple(outcome.metrics)).all()


async def test_the_longest_latencies_are_counted():
    def use(ctx):
        for _ in range(20_000):
            ctx.record_tool_call(MAX_LATENCY_MS)

    outcome, _ = await run_once(use)
    assert outcome.metrics.num_tool_calls == 20_000
    assert outcome_to_wire(outcome).metrics.num_tool_calls == 20_000
