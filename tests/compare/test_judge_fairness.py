"""The judge of the comparison takes no fault from what a system may do: replies in parts, and reasoning in contents."""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from comparison.adapter import Delivered, merged
from comparison.cases import CASES, user
from comparison.judge import Truth, judge
from comparison.models import NAMES, Model, make

pytestmark = pytest.mark.adapters
BEGIN = [user("Please begin.")]
REASON = '<think>\nThe tool.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("models")
    make(folder)
    return Model.load(folder / request.param)


def asked(messages: list[dict[str, Any]], got: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"messages": messages, "tools": None, "got": got}


def sampled(model: Model, number: int, messages: list[dict[str, Any]], text: str) -> dict[str, Any]:
    ids = [*model.encode(text), model.end]
    step = {"step": number, "status": 200, "stop": "", "version": "1", "finish": "stop"}
    return {**step, "prompt": model.render(messages), "ids": ids, "logprobs": [-0.25] * len(ids)}


def test_a_reply_whose_first_tokens_are_trained_in_its_twin_is_delivered(model):
    steps = [sampled(model, n, BEGIN, text) for n, text in enumerate(("A first reply.", "A second reply."))]
    known = Truth(steps, [asked(BEGIN)])
    first, second = (merged([step])[0] for step in steps)
    shared = len(steps[0]["prompt"]) + 1
    part = replace(second, mask=[0] * shared + second.mask[shared:])
    assert judge(CASES["bestof"], known, Delivered([first, part]), model).verdict == "exact"
    assert judge(CASES["bestof"], known, Delivered([part]), model).verdict == "wrong"


def test_reasoning_in_the_content_of_a_reply_with_tool_calls_is_no_other_reply(model):
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    reply = {"role": "assistant", "content": "<think>The tool.</think>", "tool_calls": [call]}
    step = sampled(model, 0, BEGIN, REASON)
    known = Truth([step], [asked(BEGIN, reply)])
    assert judge(CASES["toolplain"], known, Delivered(merged([step])), model).verdict == "exact"


def test_a_turn_that_ends_twice_is_another_history(model):
    first = sampled(model, 0, BEGIN, "A first reply.")
    histories = [BEGIN, [*BEGIN, {"role": "assistant", "content": "A first reply."}, user("Go on.")]]
    second = sampled(model, 1, histories[1], "And more.")
    at = len(first["prompt"]) + len(first["ids"])
    twice = {**second, "prompt": [*second["prompt"][:at], model.end, *second["prompt"][at:]]}
    for step, verdict in (second, "exact"), (twice, "wrong"):
        known = Truth([first, step], [asked(history) for history in histories])
        assert judge(CASES["plain"], known, Delivered(merged([first, step])), model).verdict == verdict
