"""The policies that know their replies: the mock's arithmetic, its tokens, the scripts."""

import zlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from osmosis_grpc.policies import EchoPolicy, ScriptedPolicy, ToolCallingMock
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import FailedPrecondition
from osmosis_grpc.protocol.types import ChatRequest, OutcomeStatus, events
from osmosis_grpc.protocol.types.messages import copy_message
from osmosis_grpc.testing import collect_rollout, run_rollout
from osmosis_grpc.testing.calculator import CalculatorAgent
from tests.trainer.conftest import USER, Talker


def user(text):
    return {"role": "user", "content": text}


def chat(messages, number=1, **more) -> ChatRequest:
    return ChatRequest(rollout_id="r", messages=messages, chat_number=number, **more)


# The formula of osmosis_grpc.policies.formula, from its description


def made_up(text: str, count: int | None) -> list[int]:
    start = zlib.crc32(text.encode("utf-8"))
    return [(start + 7919 * i) % 32_000 for i in range(8 + start % 25 if count is None else count)]


def logprobs_of(ids: list[int]) -> list[float]:
    return [float(np.float32(-(token % 1000 + 1) / 1000)) for token in ids]


@given(st.text(max_size=8), st.text(max_size=4), st.integers(1, 10**6), st.none() | st.integers(0, 60))
def test_the_formula_is_as_described(rollout_id, sample, number, count):
    from osmosis_grpc.policies import formula

    block = formula.reply_tokens(rollout_id, sample, number, count)
    assert block.ids.tolist() == made_up(f"{rollout_id}/{sample}/{number}", count)
    assert block.logprobs.tolist() == logprobs_of(block.ids.tolist())
    assert block.complete
    assert formula.message_ids(rollout_id, sample, number).tolist() == made_up(
        f"{rollout_id}/{sample}/message/{number}", 4
    )


@pytest.mark.parametrize("tokens", [None, 256, 0])
async def test_a_rollout_of_the_mock_has_the_tokens_of_the_formula(tokens):
    """Prompts grow: prompt(n+1) = prompt(n) + reply(n) + 4 ids per message that is new."""
    question = [{"role": "system", "content": "Calculate."}, user("What is (2+3)*(4+5)?")]
    outcome, seen = await collect_rollout(
        CalculatorAgent(), ToolCallingMock(tokens=tokens), question, rollout_id="ü-1", label="45"
    )
    asked = [event.kind for event in seen if isinstance(event.kind, events.ChatRequested)]
    answers = [event.kind.response for event in seen if isinstance(event.kind, events.ChatAnswered)]
    assert len(asked) == len(answers) == 3
    known, position = [], 0
    for request, response in zip(asked, answers, strict=True):
        reply, before = made_up(f"ü-1/main/{request.chat_number}", tokens), known
        for _ in request.messages:
            known = known + made_up(f"ü-1/main/message/{position}", 4)
            position += 1
        assert before[: response.prompt_prefix] + response.prompt_ids.tolist() == known
        assert response.tokens.ids.tolist() == reply
        assert response.tokens.logprobs.tolist() == logprobs_of(reply)
        assert response.usage == {
            "prompt_tokens": len(known),
            "completion_tokens": len(reply),
            "total_tokens": len(known) + len(reply),
        }
        known, position = known + reply, position + 1
    (segment,) = outcome.samples["main"].segments
    assert segment.ids.tolist() == known
    assert segment.sampled == sum(len(response.tokens.ids) for response in answers)
    assert (outcome.reward, outcome.samples["main"].trainable) == (1.0, True)


# The mock's arithmetic


@pytest.mark.parametrize(
    ("question", "result", "calls"),
    [
        ("1 + 2", "3", 1),
        ("-4 * 2.5", "-10", 1),
        ("7/2-1", "2", 2),
        ("8 - (3 - 1)", "6", 2),
        ("2*3*4", "24", 2),
        ("1 - -2", "3", 1),
    ],
)
async def test_the_mock_and_the_calculator_agree(question, result, calls):
    outcome = await run_rollout(
        CalculatorAgent(), ToolCallingMock(), [user(f"Please work out {question}.")], label=result
    )
    assert outcome.status is OutcomeStatus.COMPLETED
    assert outcome.messages[-1]["content"].endswith(f"#### {result}")
    assert outcome.reward == 1.0
    results = [message["content"] for message in outcome.messages if message["role"] == "tool"]
    assert len(results) == calls
    assert not [text for text in results if text.startswith("Error")]


async def test_a_tool_that_failed_ends_the_reckoning():
    outcome = await run_rollout(CalculatorAgent(), ToolCallingMock(), [user("What is 1/0?")], label="1")
    assert outcome.status is OutcomeStatus.COMPLETED
    assert "I cannot answer" in outcome.messages[-1]["content"]
    assert outcome.reward == 0.0


def history(question, call, result):
    """A history in which the mock asked for 1 + 2 with a tool call of somebody else's making."""
    said = {"role": "assistant", "content": None, "tool_calls": call}
    return [user(question), said, {"role": "tool", "tool_call_id": "c", "content": result}]


def add(arguments):
    return [{"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}]


GOOD = add('{"a": 1, "b": 2}')
BROKEN = {
    "nothing": [],
    "no question": [{"role": "system", "content": "1+2"}],
    "no text": [{"role": "user", "content": [{"type": "text", "text": "1+2"}]}],
    "no expression": [user("Hello!")],
    "half an expression": [user("(1+2")],
    "two points": [user("1.2.3+4")],
    "a power": [user("2**3")],
    "a date": [user("on 2026-01-02 or 01/02")],
    "a number too long": [user("1+" + "9" * 5000)],
    "a number beyond doubles": [user("--" + "9" * 400)],
    "deep brackets": [user("(" * 5000 + "1+1" + ")" * 5000)],
    "a long sum": [user("1" + "+1" * 3000)],
    "many signs": [user("-" * 3000 + "1")],
    "arguments that are not JSON": history("1+2", add("{"), "3"),
    "arguments that are a list": history("1+2", add("[1, 2]"), "3"),
    "arguments that are missing": history("1+2", add("{}"), "3"),
    "arguments that are lists": history("1+2", add('{"a": [1], "b": {}}'), "3"),
    "arguments that are an object": history("1+2", add({"a": 1, "b": 2}), "3"),
    "a call without a function": history("1+2", [{"id": "c"}], "3"),
    "a call that is text": history("1+2", ["c"], "3"),
    "calls that are a number": history("1+2", 5, "3"),
    "an id that is a list": history("1+2", [{**GOOD[0], "id": ["c"]}], "3"),
    "a result that is not a number": history("1+2", GOOD, "three"),
    "a result that is a list": history("1+2", GOOD, [{"type": "text", "text": "3"}]),
    "an infinite result": history("1+2", GOOD, "inf"),
    "a result that is none": history("1+2", GOOD, "nan"),
    "a result beyond doubles": history("(1+2)*2", GOOD, "1e308"),
}


@pytest.mark.parametrize("messages", BROKEN.values(), ids=BROKEN.keys())
async def test_broken_input_never_raises(messages):
    message = (await ToolCallingMock()(chat(messages))).message
    assert message["role"] == "assistant"
    assert copy_message(message, "m") == message, "a reply that can travel"


@pytest.mark.parametrize("text", ["-", "(", "1 ", "1-"])
async def test_a_long_line_is_answered_before_the_test_times_out(text):
    reply = await ToolCallingMock()(chat([user(text * 50_000 + "x")]))
    assert reply.message["role"] == "assistant"


TEXT = st.text(alphabet="0123456789+-*/(). x", max_size=30)
VALUE = (
    st.none() | st.integers() | TEXT | st.sampled_from(["1e999", "-inf", "{}", '{"a":1,"b":2}', '{"a":1e308,"b":[]}'])
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "id": VALUE,
            "function": VALUE | st.fixed_dictionaries({}, optional={"name": VALUE, "arguments": VALUE}),
        },
    )
    | VALUE,
    max_size=2,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"])},
    optional={"content": VALUE, "tool_calls": CALLS | VALUE, "tool_call_id": VALUE},
)


@given(TEXT, st.lists(MESSAGE, max_size=4))
@example("1+1", [{"role": "assistant", "tool_calls": [None]}])
async def test_no_history_makes_the_mock_raise(question, messages):
    message = (await ToolCallingMock()(chat([user(question), *messages]))).message
    assert copy_message(message, "m") == message


# Scripts


async def test_a_script_gives_reply_n_to_chat_n():
    whole = {"role": "assistant", "content": None, "tool_calls": GOOD}
    policy = ScriptedPolicy(["one", whole], version="v7", tokens=3)
    first, second = await policy(chat([], 1)), await policy(chat([], 2, sample="other"))
    assert (first.message, first.finish_reason) == ({"role": "assistant", "content": "one"}, "stop")
    assert (second.message, second.finish_reason) == (whole, "tool_calls")
    assert len(first.tokens.ids) == 3
    assert [(span.version, span.tokens) for span in first.versions] == [("v7", 3)]
    with pytest.raises(FailedPrecondition, match="2 replies, and this is chat 3"):
        await policy(chat([], 3))


async def test_a_script_per_rollout_and_a_script_that_is_a_function():
    policy = ScriptedPolicy({"r": ["for r"]})
    assert (await policy(chat([]))).message["content"] == "for r"
    with pytest.raises(FailedPrecondition):
        await policy(ChatRequest(rollout_id="q", messages=[]))
    policy = ScriptedPolicy(lambda request: f"{request.rollout_id} {request.chat_number}")
    assert (await policy(chat([], 5))).message["content"] == "r 5"


@pytest.mark.parametrize(("content", "echo"), [("hi", "hi"), (None, ""), ([{"type": "text"}], "")])
async def test_an_echo(content, echo):
    assert (await EchoPolicy()(chat([user("first"), user(content)]))).message["content"] == echo
    assert (await EchoPolicy()(chat([]))).message["content"] == ""


def sync(request):
    return answer(request, "fine")


async def awaited(request):
    return sync(request)


@pytest.mark.parametrize("policy", [sync, awaited])
async def test_run_rollout_takes_sync_and_async_policies(policy):
    outcome = await run_rollout(Talker(), policy, [USER])
    assert (outcome.status, outcome.samples["main"].trainable) == ("COMPLETED", True)
