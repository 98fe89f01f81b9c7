"""Sampling parameters that the trainer or the server pins are those that a chat is asked with."""

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.engine import EngineConfig
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatPurpose, Fork, events
from tests.engine.test_journal import Talker, crashed, keeping

QUESTION = [{"role": "user", "content": "hi"}]


def asking(**params):
    async def run(ctx):
        await ctx.chat(QUESTION, **params)
        return ctx.complete()

    return run


CASES = {
    "nothing is pinned": ({}, {"temperature": 0.7}, False, {"temperature": 0}, {"temperature": 0.0}),
    "by the trainer": ({}, {"temperature": 0.7}, True, {"temperature": 0}, {"temperature": 0.7}),
    "the agent passes nothing": ({}, {"temperature": 0.7}, True, {}, {"temperature": 0.7}),
    "other parameters stay": (
        {},
        {"top_p": 0.5},
        True,
        {"temperature": 0.1, "stop": ["x"]},
        {"temperature": 0.1, "stop": ["x"], "top_p": 0.5},
    ),
    "by the server": ({"temperature": 1.0}, {}, False, {"temperature": 0}, {"temperature": 1.0}),
    "the server's value gives way to the trainer's": (
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.5},
        False,
        {"temperature": 0, "top_p": 0.9},
        {"temperature": 0.7, "top_p": 0.9},
    ),
    "both": ({"temperature": 1.0}, {"top_k": 5}, True, {"top_k": 1}, {"temperature": 1.0, "top_k": 5}),
    "names of one limit": ({}, {"max_tokens": 64}, True, {"max_completion_tokens": 9}, {"max_tokens": 64}),
    "names of one limit, by both": (
        {"max_tokens": 9},
        {"max_completion_tokens": 64},
        False,
        {"max_new_tokens": 1},
        {"max_completion_tokens": 64},
    ),
    "a null pins nothing": ({}, {"temperature": None}, True, {"temperature": 0.5}, {"temperature": 0.5}),
}


@pytest.mark.parametrize(("server", "trainer", "pin", "passed", "asked"), CASES.values(), ids=list(CASES))
async def test_a_chat_is_asked_with_pinned_parameters(hosting, server, trainer, pin, passed, asked):
    async with hosting(asking(**passed), pin_sampling=server) as h:
        record = await h.start(completion_params=trainer, pin_completion_params=pin)
        assert (await h.settled(record)).failure is None
        (event,) = h.kinds(record, events.ChatRequested)
    assert [dict(chat.params) for chat in h.trainer.chats] == [asked]
    assert event.params == asked
    assert event.passed == (None if passed == asked else passed), "what the agent had passed stays visible"


async def test_a_judges_chat_keeps_its_own_parameters(hosting):
    async def run(ctx):
        await ctx.chat(QUESTION, purpose=ChatPurpose.JUDGE, temperature=0.0)
        await ctx.for_grader().chat(QUESTION, temperature=0.0)
        await ctx.chat(QUESTION, temperature=0.0)
        return ctx.complete()

    async with hosting(run, pin_sampling={"temperature": 1.0}) as h:
        await h.run()
        assert [chat.params["temperature"] for chat in h.trainer.chats] == [0.0, 0.0, 1.0]


async def test_a_pin_that_is_no_sampling_parameter_is_refused():
    with pytest.raises(InvalidArgument) as error:
        EngineConfig(pin_sampling={"temperature": -1})
    assert [field for field, _ in error.value.violations] == ["pin_sampling.temperature"]


async def test_a_fork_of_a_rollout_may_pin_other_parameters(hosting):
    """The agent asks the same question, so the recorded reply is used, and the next chat has the new parameters."""

    class Agent(RolloutAgentLoop):
        name = "agent"
        replayable = True

        async def run(self, ctx):
            history = list(QUESTION)
            for _ in range(2):
                history += [(await ctx.chat(history, temperature=0.0)).message, *QUESTION]
            return ctx.complete()

    async with hosting(Agent()) as h:
        await h.run("original", completion_params={"temperature": 0.5}, pin_completion_params=True)
        outcome = await h.run(
            "fork", completion_params={"temperature": 0.9}, pin_completion_params=True, fork=Fork("original", 1)
        )
        assert outcome.failure is None, outcome.failure
        asked = [(chat.rollout_id, chat.params["temperature"]) for chat in h.trainer.chats]
        assert asked == [("original", 0.5), ("original", 0.5), ("fork", 0.9)]


@pytest.mark.parametrize(("pinned", "first"), [({"temperature": 1.0}, 1.0), ({}, 0.5)])
async def test_an_open_chat_is_asked_again_with_the_parameters_that_it_had(tmp_path, pinned, first):
    """The trainer may be sampling its reply. Only the chats after it have what the server pins after its restart."""
    left = await crashed(tmp_path / "state", Talker(), 2, pin_sampling=pinned)
    async with keeping(left, Talker(), pin_sampling={"temperature": 0.25}) as h:
        outcome = (await h.get()).outcome
        assert outcome.failure is None, outcome.failure
        asked = [(chat.chat_number, chat.params["temperature"]) for chat in h.trainer.chats]
    assert asked[:2] == [(2, first), (3, 0.25)]
