"""The cases, the expectations, the runner and the reports of the suite."""

import asyncio
import json
import xml.etree.ElementTree as ET

import pytest

from osmosis_grpc.testing.conformance import report
from osmosis_grpc.testing.conformance.cases import filled, load, read
from osmosis_grpc.testing.conformance.links import Failed
from osmosis_grpc.testing.conformance.patterns import differences
from osmosis_grpc.testing.conformance.protobuf_data import CaseError
from osmosis_grpc.testing.conformance.report import Skipped
from osmosis_grpc.testing.conformance.runner import chosen_cases, known_failures, run_cases
from osmosis_grpc.testing.conformance.server_session import KINDS as SERVER
from osmosis_grpc.testing.conformance.trainer_session import KINDS as TRAINER


def test_all_cases_can_be_read():
    assert len(load("server", SERVER)) >= 100
    assert len(load("trainer", TRAINER)) >= 40


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- {case: a, kind: calls, calls: []}", "attacks is missing"),
        ("- {case: A_b, attacks: x, kind: calls}", "lower-case"),
        ("- {case: a, attacks: x, kind: magic}", "no kind magic"),
        ("- {case: a, attacks: x, kind: calls, cals: []}", "no key cals"),
        ("- {case: a, attacks: x, kind: frames, over: [pigeon], steps: []}", "no mode pigeon"),
        (
            "- {case: a, attacks: x, kind: frames, steps: [{sendd: {}}]}",
            "step 1: there is no verb sendd; there are .*send",
        ),
        ("- {case: a, attacks: x, kind: frames, steps: [{send: {}, end: OK}]}", "step 1 needs one verb"),
        ("- {case: a, attacks: x, kind: calls, needs: [featur fork], calls: []}", "featur fork is nothing"),
        ("- {case: a, attacks: x, kind: calls}", "mine.yaml: a: calls is missing"),
        ("- {case: a, attacks: x, kind: calls, calls: {}}", "a: calls: is not a list with elements"),
        ("- {case: a, attacks: x, kind: frames, steps: [hello]}", "a: step 1 is not an object"),
        ("- {case: a, attacks: x, kind: frames, steps: [{sleep: 0}], limit: long}", "limit: is not a number: 'long'"),
        ("- {case: a, attacks: x, kind: frames, steps: [{sleep: 0}], over: attach}", "over: is not a list"),
        ("- {case: 5, attacks: x, kind: frames, steps: [{sleep: 0}]}", "case: is not a text: 5"),
        ("- {case: a, attacks: x, kind: frames, steps: [{sleep: 0}], shows: no}", "shows: is not an object"),
        ("- {case: a, attacks: x, kind: rollout, script: [{chat: a}]}", "a: replies is missing"),
        ("- {case: a, attacks: x, kind: equality, field: spec.label}", "a: a case of the kind equality has"),
        ("- {case: a, attacks: x, kind: equality, field: spec.label, equal: [[1]]}", "equal: .1. is not a pair"),
        ("case: a", "mine.yaml: is not a list of cases"),
        ("", "mine.yaml: is not a list of cases"),
        ("- [", "while parsing"),
    ],
)
def test_a_wrong_case_is_named(text, problem):
    with pytest.raises(CaseError, match=problem):
        list(read(text, "server", SERVER, "mine.yaml"))


@pytest.mark.parametrize(
    ("expected", "got", "holds"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {}, False),
        ({"a": 1}, {"a": "1"}, True),
        (0.1, 0.10000000149, True),
        ([1, 2], [1, 2, 3], False),
        ({"$has": [{"a": 1}]}, [{"a": 2}, {"a": 1, "b": 1}], True),
        ({"$has": [{"a": 3}]}, [{"a": 2}], False),
        ({"$at_least": 2}, [1, 2], True),
        ({"$at_most": 1.5}, "2s", False),
        ({"$in": ["A", "B"]}, "B", True),
        ({"$not": {"a": {"$any": True}}}, {"b": 1}, True),
        ({"$not": {"a": {"$any": True}}}, {"a": 1}, False),
        ({"$json": {"a": 1}}, '{"a": 1.0}', True),
        ({"$json": {"a": 1}}, '{"a": true}', False),
        ({"$length": [1, 2]}, "abc", False),
        ({"$matches": "^a"}, "ba", False),
        ({"a": {"$absent": True}}, {}, True),
        ({"a": {"$absent": True}}, {"a": 0}, False),
        ("NOT_FOUND", {"code": "NOT_FOUND", "reason": "x"}, True),
    ],
)
def test_expectations(expected, got, holds):
    assert (not list(differences(expected, got, {}))) is holds


def test_an_unknown_operator_is_an_error_of_the_case():
    with pytest.raises(CaseError, match=r"\$atleast"):
        list(differences({"$atleast": 1}, 1, {}))


def test_values_are_saved_and_filled():
    saved = {"id": "r"}
    assert not list(differences({"a": {"$save": "kept"}}, {"a": [1, 2]}, saved))
    assert filled({"x": "${kept}", "y": "${id}-b", "z": "${repeat ab 3}"}, saved) == {
        "x": [1, 2],
        "y": "r-b",
        "z": "ababab",
    }
    with pytest.raises(CaseError, match="no variable nothing"):
        filled("${nothing}", saved)


def test_known_failures_need_a_reason():
    assert known_failures("a-case  # slow disk\n\nother@attach # x\n# nothing\n") == {
        "a-case": "slow disk",
        "other@attach": "x",
    }
    for wrong in ("a-case", "A case # x", "a@pigeon # x"):
        with pytest.raises(ValueError, match="line 1"):
            known_failures(wrong)


CASES = list(
    read(
        """
- {case: good, attacks: nothing, kind: frames, over: [attach], steps: [{sleep: 0}]}
- case: bad
  attacks: '<&> and "quotes"'
  kind: frames
  over: [attach, callback]
  shows: {Message.role: [Any other role]}
  steps: [{sleep: 0}]
- {case: hangs, attacks: time, kind: frames, limit: 0.05, steps: [{sleep: 0}]}
- {case: lacks, attacks: nothing, kind: frames, steps: [{sleep: 0}]}
""",
        "server",
        SERVER,
    )
)


async def play(case, mode, prefix, trace):
    assert prefix.startswith(f"{case.name}-{mode}-")
    trace.add("->", "hello", {"a": "\x1b[1m"})
    trace.step = "step 2 (answer)"
    if case.name == "bad":
        raise Failed("expected 1, got 2")
    if case.name == "lacks":
        raise Skipped("needs a feature")
    if case.name == "hangs":
        await asyncio.sleep(60)  # until the limit of the case


async def results_of(names=(), known=None):
    chosen = chosen_cases(CASES, names, ["attach", "callback"])
    return await run_cases(
        chosen, play, jobs=4, known=known or {}, on_result=lambda _result: None, in_turn=("callback",)
    )


async def test_verdicts():
    found = {result.name: result.verdict.name for result in await results_of()}
    assert found == {
        "good@attach": "PASSED",
        "bad@attach": "FAILED",
        "bad@callback": "FAILED",
        "hangs@attach": "FAILED",
        "lacks@attach": "SKIPPED",
    }


async def test_a_known_failure_may_fail_and_must_not_pass():
    results = await results_of(["good", "bad"], {"good": "x", "bad@attach": "a reason", "bad@callback": "y"})
    assert {result.name: result.verdict.name for result in results} == {
        "good@attach": "UNEXPECTED",
        "bad@attach": "KNOWN",
        "bad@callback": "KNOWN",
    }
    assert [result.name for result in results if result.bad] == ["good@attach"]


async def test_the_reports_show_what_failed():
    results = await results_of()
    text = "\n".join(report.failures(results))
    for part in (
        "bad@attach: failed",
        'would catch: <&> and "quotes"',
        "Message.role: “Any other role”",
        "expected 1, got 2",
        "-> hello",
    ):
        assert part in text
    assert "hangs@attach" in text
    assert "the case did not end within its limit of 0.05 s; it was at step 2 (answer)" in text
    assert text.count("would catch: <&>") == 1, "both modes failed for the same reason"
    assert "1 more failed for the same reason: bad@callback" in text
    assert text.count("--jobs 1") == 1
    data = json.loads(json.dumps(report.as_json(results, 1.5, "127.0.0.1:1")))
    assert data["counts"] == {"passed": 1, "failed": 3, "skipped": 1, "known": 0, "unexpected": 0}
    suite = ET.fromstring(report.as_junit(results, 1.5, "127.0.0.1:1"))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "3", "1")
    assert suite.find("testcase[@name='bad']/failure").get("message") == "expected 1, got 2"


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="no case nobody"):
        chosen_cases(CASES, ["nobody"], ["attach"])
