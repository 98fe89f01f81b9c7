"""The judge of the comparison finds faults that are planted in rows that are right."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from comparison import cases
from comparison.adapter import Delivered, Row, merged
from comparison.engine import Engine
from comparison.judge import Truth, Verdict, judge
from comparison.models import NAMES, Model, make

pytestmark = pytest.mark.adapters
SLOW = {"cancel", "timeout", "streamcut"}
"""Cases in which an agent or a trainer does not wait for the engine."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make(folder)
    return folder


async def truth(models: Path, tmp_path: Path, name: str, case: str, change: Callable[[Any], Any] = list) -> Truth:
    """Run a case whose agent asks the engine itself. `change` is what happens to the history on its way."""
    log = tmp_path / "engine.jsonl"
    log.unlink(missing_ok=True)
    engine = Engine(Model.load(models / name), models / name, log)

    async def chat(messages: list[Any], tools: Any = None, stream: bool = False, **options: Any) -> dict[str, Any]:
        body = {"messages": change(messages), "tools": tools, "logprobs": True, "return_token_ids": True, **options}
        status, answer = await engine.answer("/v1/chat/completions", json.dumps(body).encode())
        if status != 200:
            raise RuntimeError(answer)
        return {"message": answer["choices"][0]["message"], "finish_reason": answer["choices"][0]["finish_reason"]}

    agent = await cases.run(case, "key", chat)
    assert engine.log is not None
    engine.log.close()
    return Truth([json.loads(line) for line in log.read_text().splitlines()], agent.requests)


def right(known: Truth) -> list[Row]:
    """Return what a perfect system delivers."""
    good = [step for step in known.steps if step["status"] == 200 and step["ids"] and step["finish"] != "abort"]
    return merged([{name: step[name] for name in ("prompt", "ids", "logprobs")} for step in good])


@pytest.mark.parametrize("name", NAMES)
async def test_rows_that_hold_each_reply_are_exact(models, tmp_path, name):
    for case in cases.CASES.keys() - SLOW:
        known = await truth(models, tmp_path, name, case)
        verdict = judge(cases.CASES[case], known, Delivered(right(known)), Model.load(models / name))
        assert (verdict.verdict, verdict.why) == ("exact", ""), case


def other_id(row: Row) -> Row:
    at = row.mask.index(1)
    return replace(row, ids=[*row.ids[:at], row.ids[at] + 1, *row.ids[at + 1 :]])


def trained_prompt(row: Row) -> Row:
    return replace(row, mask=[1] * len(row.ids))


def masked_token(row: Row) -> Row:
    at = row.mask.index(1)
    return replace(row, mask=[*row.mask[:at], 0, *row.mask[at + 1 :]])


def lost_token(row: Row) -> Row:
    at = row.mask.index(1)
    logprobs = [*row.logprobs[:at], *row.logprobs[at + 1 :]] if row.logprobs else None
    return Row([*row.ids[:at], *row.ids[at + 1 :]], [*row.mask[:at], *row.mask[at + 1 :]], logprobs)


def shifted_logprobs(row: Row) -> Row:
    assert row.logprobs is not None
    return replace(row, logprobs=[0.0, *row.logprobs[:-1]])


def invented_logprobs(row: Row) -> Row:
    return replace(row, logprobs=[-0.5] * len(row.ids))


def no_logprobs(row: Row) -> Row:
    return replace(row, logprobs=None)


def short_mask(row: Row) -> Row:
    return replace(row, mask=row.mask[:-1])


def changed_context(row: Row) -> Row:
    return replace(row, ids=[row.ids[1], row.ids[0], *row.ids[2:]])


FAULTS = {
    other_id: "wrong",
    trained_prompt: "wrong",
    masked_token: "wrong",  # the rest of the reply is trained, and is not the reply
    lost_token: "wrong",
    shifted_logprobs: "wrong",
    invented_logprobs: "wrong",
    short_mask: "wrong",
    changed_context: "wrong",
    no_logprobs: "no logprobs",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("case", ["plain", "tooltwice", "compaction"])
async def test_a_fault_in_a_row_is_found(models, tmp_path, name, fault, case):
    verdict = await judged(models, tmp_path, name, case, lambda rows: [*rows[:-1], fault(rows[-1])])
    assert verdict.verdict == FAULTS[fault]


async def judged(
    models: Path, tmp_path: Path, name: str, case: str, change: Callable[[list[Row]], list[Row]], said: str = ""
) -> Verdict:
    known = await truth(models, tmp_path, name, case)
    return judge(cases.CASES[case], known, Delivered(change(right(known)), said), Model.load(models / name))


@pytest.mark.parametrize("name", NAMES)
async def test_a_missing_row_is_lost_or_left_out_with_a_reason(models, tmp_path, name):
    for said, expected in ("", "lost"), ("the window was full", "left out"):
        verdict = await judged(models, tmp_path, name, "compaction", lambda rows: rows[1:], said)
        assert (verdict.verdict, verdict.said) == (expected, said)
    for said, expected in ("", "lost"), ("it failed", "left out"):
        assert (await judged(models, tmp_path, name, "plain", lambda rows: [], said)).verdict == expected


async def test_a_reply_that_is_trained_in_two_rows_and_a_row_more_than_needed_are_found(models, tmp_path):
    verdict = await judged(models, tmp_path, "chatml", "plain", lambda rows: [*rows, rows[0]])
    assert verdict.verdict == "twice"


async def test_a_dropped_reply_that_is_trained_is_counted(models, tmp_path):
    known = await truth(models, tmp_path, "chatml", "branch")
    verdict = judge(cases.CASES["branch"], known, Delivered(right(known)), Model.load(models / "chatml"))
    assert (verdict.verdict, verdict.dropped) == ("exact", 1)


def forgetful(messages: list[Any]) -> list[Any]:
    return [*messages[:1], *messages[-1:]] if len(messages) > 2 else messages


def editing(messages: list[Any]) -> list[Any]:
    return [{**m, "content": "I said something else."} if m["role"] == "assistant" else m for m in messages]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [forgetful, editing])
async def test_a_model_that_saw_another_history_is_wrong(models, tmp_path, name, change):
    known = await truth(models, tmp_path, name, "plain", change)
    verdict = judge(cases.CASES["plain"], known, Delivered(right(known)), Model.load(models / name))
    assert verdict.verdict == "wrong"


async def test_a_reply_that_the_engine_never_sampled_is_wrong(models, tmp_path):
    known = await truth(models, tmp_path, "chatml", "plain")
    made_up = {**known.requests[-1], "got": {"role": "assistant", "content": "Made up."}}
    invented = replace(known, requests=[*known.requests[:-1], made_up])
    verdict = judge(cases.CASES["plain"], invented, Delivered(right(known)), Model.load(models / "chatml"))
    assert verdict.verdict == "wrong"


async def test_a_rollout_that_never_asked_or_never_ended_has_failed(models, tmp_path):
    model, case = Model.load(models / "chatml"), cases.CASES["plain"]
    assert judge(case, Truth([], []), Delivered([], "no route"), model).verdict == "failed"
    assert judge(case, Truth([], []), Delivered([]), model).verdict == "lost"
    known = await truth(models, tmp_path, "chatml", "plain")
    assert judge(case, replace(known, ended=False), Delivered(right(known)), model).verdict == "failed"


async def test_cases_with_clients_that_leave_are_judged_by_what_they_got(models, tmp_path):
    known = await asyncio.wait_for(truth(models, tmp_path, "chatml", "timeout"), 20)
    verdict = judge(cases.CASES["timeout"], known, Delivered(right(known)), Model.load(models / "chatml"))
    assert verdict.verdict == "exact"
