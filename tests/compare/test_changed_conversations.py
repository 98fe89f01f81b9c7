"""Systems that stand between agent and engine and change what passes: the judge of the comparison finds them."""

import asyncio
import copy
import json
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from comparison import cases
from comparison.adapter import Delivered, Row, merged
from comparison.engine import Engine
from comparison.judge import Truth, judge
from comparison.models import NAMES, Model, make
from tests.compare.test_judge import right

pytestmark = [pytest.mark.adapters, pytest.mark.parametrize("name", NAMES)]


@pytest.fixture
def world(tmp_path, name):
    """Run a case with a system between agent and engine that changes requests or answers."""
    make(tmp_path)
    model = Model.load(tmp_path / name)
    log = tmp_path / "engine.jsonl"

    async def run(case: str, change: Any = None, answered: Any = None, tools: bool = True) -> Truth:
        engine = Engine(model, tmp_path / name, log)

        async def chat(messages: Any, **options: Any) -> Any:
            sent = copy.deepcopy(messages)
            body = {"messages": change(sent) if change else sent, **options}
            body = body if tools else {key: value for key, value in body.items() if key != "tools"}
            _, answer = await engine.answer("/v1/chat/completions", json.dumps(body).encode())
            choice = answer["choices"][0]
            got = {"message": choice["message"], "finish_reason": choice["finish_reason"]}
            return await answered(got) if answered else got

        agent = await cases.run(case, "key", chat)
        return Truth([json.loads(line) for line in log.read_text().splitlines()], agent.requests)

    def verdict(case: str, truth: Truth, rows: list[Row] | None = None) -> str:
        return judge(cases.CASES[case], truth, Delivered(right(truth) if rows is None else rows), model).verdict

    return run, verdict


async def test_a_logprob_that_is_no_number_is_wrong(world):
    run, verdict = world
    truth = await run("plain")
    rows = [replace(row, logprobs=[float("nan")] * len(row.ids)) for row in right(truth)]
    assert verdict("plain", truth, rows) != "exact"


async def test_a_logprob_of_none_is_a_verdict(world):
    run, verdict = world
    truth = await run("plain")
    assert verdict("plain", truth, [replace(row, logprobs=[None] * len(row.ids)) for row in right(truth)]) != "exact"


async def test_rows_that_come_five_times_are_not_exact(world):
    run, verdict = world
    truth = await run("plain")
    assert verdict("plain", truth, right(truth) * 5) != "exact"


async def test_a_system_that_sends_the_first_message_only_is_wrong(world):
    run, verdict = world
    assert verdict("plain", await run("plain", lambda messages: messages[:1])) == "wrong"


async def test_a_system_that_drops_the_tools_is_wrong(world):
    run, verdict = world
    assert verdict("tooltwice", await run("tooltwice", tools=False)) == "wrong"


async def test_forged_reasoning_is_wrong(world):
    run, verdict = world

    def forge(messages: Any) -> Any:
        return [{**m, "reasoning_content": "FORGED"} if m.get("reasoning_content") else m for m in messages]

    assert verdict("reasontool", await run("reasontool", forge)) == "wrong"


async def test_replies_of_two_requests_that_are_swapped_are_wrong(world):
    run, verdict = world
    got: list[Any] = []
    both = asyncio.Event()

    async def swap(answer: Any) -> Any:
        got.append(answer)
        number = len(got)
        if number not in (2, 3):
            return answer
        if number == 3:
            both.set()
        await both.wait()
        return got[4 - number]  # 2 gets the answer of 3 and 3 that of 2

    assert verdict("concurrent", await run("concurrent", answered=swap)) == "wrong"


async def test_an_agent_that_always_gets_the_first_reply_got_the_wrong_one(world):
    run, verdict = world
    got: list[Any] = []

    async def first(answer: Any) -> Any:
        got.append(answer)
        return got[0]

    assert verdict("plain", await run("plain", answered=first)) == "wrong"


@pytest.mark.parametrize("text", ["a\n</tool_response>\nb", "see [/RESULT] and </s>", "<tools>\nno JSON\n</tools>"])
async def test_a_result_that_quotes_the_marks_of_templates_is_shown(world, monkeypatch, text):
    monkeypatch.setattr(cases, "results", lambda message: [
        {"role": "tool", "tool_call_id": call["id"], "content": text} for call in message.get("tool_calls") or []
    ])  # fmt: skip
    run, verdict = world
    assert verdict("toolplain", await run("toolplain")) == "exact"


@pytest.mark.parametrize(
    "change",
    [
        lambda messages: [{"role": "system", "content": "# Tools\n\nYou may call nobody."}, *messages],
        lambda messages: [{**m, "content": f"\n {m['content']}!"} if m["role"] == "user" else m for m in messages],
        lambda messages: [*messages, {"role": "user", "content": "Be quick."}],
    ],
    ids=["system", "user", "more"],
)
async def test_what_a_system_adds_to_a_prompt_is_wrong(world, change):
    run, verdict = world
    assert verdict("plain", await run("plain", change)) == "wrong"


async def test_a_system_may_continue_a_reply_that_was_aborted(world, tmp_path, name):
    model = Model.load(tmp_path / name)
    engine = Engine(model, tmp_path / name, tmp_path / "engine.jsonl")

    async def chat(messages: Any, **options: Any) -> Any:
        prompt, ids, finish = model.render(messages), [], "abort"
        while finish == "abort":
            body = {"prompt": prompt + ids, "return_token_ids": True, "logprobs": 1}
            _, answer = await engine.answer("/v1/completions", json.dumps(body).encode())
            ids, finish = ids + answer["choices"][0]["token_ids"], answer["choices"][0]["finish_reason"]
        text = model.decode(ids).replace("<|im_end|>", "").replace("</s>", "")
        return {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}

    agent = await cases.run("abort", "key", chat)
    steps = [json.loads(line) for line in (tmp_path / "engine.jsonl").read_text().splitlines()]
    _, verdict = world
    rows = merged([{key: step[key] for key in ("prompt", "ids", "logprobs")} for step in steps])
    assert verdict("plain", Truth(steps, agent.requests), rows) == "exact"
