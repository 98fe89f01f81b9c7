"""Eval functions: their signatures, their calls, and their failures."""

import asyncio
import functools
import threading

import numpy as np
import pytest

from osmosis_grpc import osmosis_reward
from osmosis_grpc.agent.loader import LoadError
from osmosis_grpc.records.evaluate.errors import EvalFunctionError
from osmosis_grpc.records.evaluate.eval_functions import EvalFunction, Scored, Scorer, load_eval_functions

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "6 / 2?"},
    {"role": "assistant", "content": "It is 3."},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "user", "content": "Thanks"},
]
SCORED = Scored(messages=MESSAGES, label="3", metadata={"row_index": 0, "list": [1]})


def simple(solution_str, ground_truth, extra_info=None, **kwargs):
    return float(ground_truth in solution_str)


async def full(messages, ground_truth, metadata):
    await asyncio.sleep(0)
    return len(messages) + metadata["row_index"]


async def score(*functions, scored=SCORED, known=None, timeout=5.0):
    scorer = Scorer([EvalFunction(f"f{number}", each) for number, each in enumerate(functions)], timeout)
    try:
        return await scorer.score(scored, known or {})
    finally:
        scorer.close()


async def one(function, **options):
    scores, errors = await score(function, **options)
    return scores.get("f0", errors.get("f0"))


async def test_both_signatures_and_both_kinds_of_functions():
    assert await score(simple, full) == ({"f0": 1.0, "f1": 5.0}, {})


async def test_the_solution_is_the_last_text_of_the_assistant():
    said = []
    await one(lambda solution_str: said.append(solution_str) or 1)
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    for messages in (parts, [{"role": "user", "content": "x"}], []):
        await one(
            lambda solution_str: said.append(solution_str) or 1,
            scored=Scored(messages=messages, label=None, metadata={}),
        )
    assert said == ["It is 3.", "ab", "", ""]


@pytest.mark.parametrize(
    "function",
    [
        osmosis_reward(simple),
        functools.partial(simple, extra_info={}),
        lambda solution_str, ground_truth: ground_truth in solution_str and 1,
        lambda solution_str, **rest: rest["ground_truth"] in solution_str and rest["extra_info"]["row_index"] + 1,
        lambda solution_str, metadata, extra_info: metadata == extra_info and 1,
        lambda messages: messages[2]["content"] == "It is 3." and 1,
    ],
    ids=["decorated", "partial", "two", "rest", "metadata", "messages"],
)
async def test_a_function_gets_the_arguments_that_it_takes(function):
    assert await one(function) == 1.0


async def test_an_object_may_be_called_and_a_result_may_be_awaitable():
    class Judge:
        async def __call__(self, solution_str):
            return 0.5

    async def later():
        return 0.25

    assert await score(Judge(), lambda solution_str: later()) == ({"f0": 0.5, "f1": 0.25}, {})


async def test_a_function_that_changes_its_arguments_changes_nothing_else():
    def changes(messages, ground_truth, metadata):
        metadata["list"].append(2)
        messages[0]["content"] = "gone"
        messages.clear()
        return 1

    for _ in range(2):
        assert await score(changes, full) == ({"f0": 1.0, "f1": 5.0}, {})
    assert MESSAGES[0]["content"] == "Be brief."


async def test_a_function_that_blocks_stops_no_other():
    second = threading.Event()

    def first(solution_str):
        return float(second.wait(10))

    async def other(solution_str):
        second.set()
        return 1

    assert await score(first, other) == ({"f0": 1.0, "f1": 1.0}, {})


@pytest.mark.parametrize("result", [float("nan"), float("inf"), None, "1", [1.0]], ids=repr)
async def test_a_result_that_is_no_finite_number_is_a_failure(result):
    assert await one(lambda solution_str: result) == f"it returned {result!r}, not a finite number"


@pytest.mark.parametrize(("result", "scored"), [(True, 1.0), (np.False_, 0.0), (np.float32(0.5), 0.5)], ids=repr)
async def test_a_bool_and_a_scalar_of_numpy_are_scores(result, scored):
    assert await one(lambda solution_str: result) == scored


async def test_an_exception_is_a_failure_with_its_text_and_place():
    def fails(solution_str):
        raise ValueError("I cannot judge")

    async def later(solution_str):
        raise KeyError

    def leaves(solution_str):
        raise SystemExit(3)

    scores, errors = await score(fails, later, leaves, simple)
    assert scores == {"f3": 1.0}
    assert errors["f0"].startswith("ValueError: I cannot judge at tests/records/evaluate/test_eval_functions.py:")
    assert errors["f1"].startswith("KeyError at ")
    assert errors["f2"].startswith("SystemExit: 3 at ")


async def test_a_function_that_never_returns_is_a_failure():
    wait = threading.Event()

    async def forever(solution_str):
        await asyncio.Event().wait()

    _, errors = await score(lambda solution_str: wait.wait(20), forever, timeout=0.05)
    wait.set()
    assert errors == dict.fromkeys(("f0", "f1"), "it took longer than 0.05 s")


async def test_a_known_score_is_not_computed_again():
    function = EvalFunction("f", lambda solution_str: 1 / 0)
    assert await Scorer([function]).score(SCORED, {function.annotation_id: 0.5}) == ({"f": 0.5}, {})


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda: 1, "it has no parameters; name it solution_str"),
        (lambda text: 1, "the first parameter is text; name it solution_str"),
        (lambda solution_str, other: 1, "missing a required argument: 'other'"),
        (lambda messages, /: 1, "missing a required argument: 'messages'; it is called with the named"),
    ],
)
def test_a_wrong_signature_is_an_error(function, problem):
    with pytest.raises(EvalFunctionError) as raised:
        EvalFunction("f", function)
    assert str(raised.value).startswith(f"f: {problem}")


def test_a_name_leads_to_a_function(tmp_path, monkeypatch):
    (tmp_path / "judges.py").write_text("def a(solution_str): return 1\ndef b(text): return 1\nC = 3\nclass D: pass\n")
    monkeypatch.chdir(tmp_path)
    assert [each.name for each in load_eval_functions(["judges:a"])] == ["judges:a"]
    with pytest.raises(LoadError, match=r"judges has no attribute 'x'; it has: a$"):
        load_eval_functions(["judges:x"])
    with pytest.raises(LoadError, match="MODULE:ATTRIBUTE"):
        load_eval_functions(["judges"])
    for name, problem in (
        ("C", "judges:C is a int"),
        ("D", "judges:D is a class"),
        ("b", "the first parameter is text"),
    ):
        with pytest.raises(EvalFunctionError, match=problem):
            load_eval_functions([f"judges:{name}"])
    with pytest.raises(EvalFunctionError, match="judges:a is given twice"):
        load_eval_functions(["judges:a", "judges:a"])


def test_another_source_is_another_annotation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ids = []
    for module, source in (("c05_one", "1"), ("c05_two", "2"), ("c05_three", "1")):
        (tmp_path / f"{module}.py").write_text(f"def f(solution_str): return {source}\n")
        (function,) = load_eval_functions([f"{module}:f"])
        assert set(function.version.parts) == {f"{module}.py"}
        ids.append(function.annotation_id)
    assert len(set(ids)) == 3
    assert all(len(name) <= 256 for name in (EvalFunction("n" * 400, simple).annotation_id, *ids))
    annotation = EvalFunction("n" * 400, simple).annotation(0.5, "ada")
    annotation.check()
    assert (annotation.author, annotation.reward) == ("ada", 0.5)
