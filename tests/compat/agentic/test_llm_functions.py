"""ARL row 9: sync and async functions that return texts, dicts and objects give identical trajectories."""

import asyncio
import dataclasses
import threading
import types

import pytest
from pydantic import BaseModel

from osmosis_grpc.agentic import policy_of
from osmosis_grpc.compat.agentic.llm_calls import LLMError, Retries
from osmosis_grpc.protocol.errors import Internal
from osmosis_grpc.protocol.types import ChatRequest, OutcomeStatus
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import RolloutRequest, Trainer

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
ASKS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
SAYS = {"role": "assistant", "content": "#### 5"}


class Pydantic(BaseModel):
    message: dict


@dataclasses.dataclass
class Plain:
    message: dict


SHAPES = {
    "a message": lambda message: dict(message),
    "a dict with a message": lambda message: {"message": message},
    "OpenAI's format": lambda message: {"choices": [{"message": message, "finish_reason": ""}]},
    "a pydantic model": lambda message: Pydantic(message=message),
    "an object": lambda message: Plain(message),
    "an object of OpenAI's shape": lambda message: types.SimpleNamespace(choices=[{"message": message}]),
    "a text at the end": lambda message: message["content"] or message,
    "an object with a text at the end": lambda message: (
        types.SimpleNamespace(text=message["content"]) if message["content"] else message
    ),
}


def answer(messages):
    return SAYS if messages[-1]["role"] == "tool" else ASKS


def forms(shape):
    """The same LLM as a sync, an async and a callable function."""

    def sync(messages, max_tokens=512, temperature=0.7, **kwargs):
        assert kwargs["tools"]
        return shape(answer(messages))

    async def asynchronous(messages, tools=None):
        assert tools
        return shape(answer(messages))

    class Callable:
        async def __call__(self, messages, **kwargs):
            return shape(answer(messages))

    return [sync, asynchronous, Callable(), lambda messages, **kwargs: asynchronous(messages, kwargs["tools"])]


async def messages_of(function):
    outcome = await run_rollout(CalculatorAgent(), policy_of(function), QUESTION, metadata={"ground_truth": "5"})
    assert outcome.status is OutcomeStatus.COMPLETED
    return outcome.reward, list(outcome.messages)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.row("ARL 9")
async def test_each_form_of_a_function_gives_the_same_rollout(shape):
    expected = await messages_of(lambda messages, **_: dict(answer(messages)))
    assert expected[0] == 1.0
    for function in forms(shape):
        assert await messages_of(function) == expected


@pytest.mark.row("ARL 9")
async def test_a_trainer_asks_a_function_over_grpc():
    local = await run_rollout(
        CalculatorAgent(), policy_of(forms(dict)[0]), QUESTION, metadata={"ground_truth": "5"}, rollout_id="r"
    )
    async with (
        AgentServer([CalculatorAgent()], port=0) as server,
        Trainer([f"127.0.0.1:{server.port}"], policy_of(forms(dict)[0])) as trainer,
    ):
        request = RolloutRequest(rollout_id="r", messages=QUESTION, metadata={"ground_truth": "5"})
        [remote] = [outcome async for outcome in trainer.run([request])]
    assert remote.reward == local.reward == 1.0
    assert list(remote.messages) == list(local.messages)


@pytest.mark.row("ARL 9")
async def test_a_sync_function_that_blocks_does_not_block_the_event_loop():
    release, entered = threading.Event(), threading.Event()

    def blocks(messages):
        entered.set()
        assert release.wait(60)
        return "done"

    policy = policy_of(blocks)
    async with policy:
        asked = asyncio.ensure_future(policy(ChatRequest(rollout_id="r", messages=QUESTION)))
        for _ in range(200):  # the loop turns while the function blocks
            await asyncio.sleep(0)
        assert not asked.done()
        release.set()
        reply = await asked
    assert entered.is_set()
    assert reply.message["content"] == "done"
    assert reply.tokens is None
    assert reply.usage is None


@pytest.mark.parametrize(
    "wrong", [None, 5, [], {}, object(), {"message": 5}, {"choices": []}, {"role": "user", "content": "x"}]
)
@pytest.mark.row("ARL 9")
async def test_another_result_is_an_error_that_says_what_to_return(wrong):
    async with policy_of(lambda messages: wrong) as policy:
        with pytest.raises(LLMError, match=r"llm_generate_func returned .*return the reply's text") as raised:
            await policy(ChatRequest(rollout_id="r", messages=QUESTION))
    assert isinstance(raised.value.cause, Internal)
    assert raised.value.attempts == 1


@pytest.mark.row("ARL 9")
async def test_a_function_gets_the_keywords_that_it_names():
    seen = []

    def some(messages, temperature=0.7):
        seen.append((messages, temperature))
        messages.append("changed")
        return "ok"

    request = ChatRequest(rollout_id="r", messages=QUESTION, params={"temperature": 0.1, "top_p": 0.5})
    await policy_of(some)(request)
    assert seen == [([*QUESTION, "changed"], 0.1)]
    assert list(request.messages) == QUESTION
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    with pytest.raises(LLMError, match="llm_generate_func: takes no keyword `tools`"):
        await policy_of(some)(dataclasses.replace(request, tools=tools))
    with pytest.raises(TypeError, match="llm_generate_func: 5 is not callable"):
        policy_of(5)
    for field, bad in (("attempts", {"attempts": 0}), ("first", {"first": 9.0, "longest": 1.0})):
        with pytest.raises(ValueError, match=field):
            Retries(**bad)
