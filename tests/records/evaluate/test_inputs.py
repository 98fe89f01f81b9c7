"""The inputs of a run, and rows that are chosen by number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.cli.command_options import Choices, RunOptions
from osmosis_grpc.cli.dataset_options import inputs, prepare
from osmosis_grpc.records.evaluate import ModelError
from osmosis_grpc.records.evaluate.dataset import RowChoice
from osmosis_grpc.records.evaluate.inputs import changes


def test_a_change_of_the_inputs_is_named():
    then = {"agent": {"name": "a", "agent.py": "sha256:1"}, "sampling": {"max_turns": 10}, "runs": {"n": 2}}
    now = {
        "agent": {"name": "a", "agent.py": "sha256:2"},
        "sampling": {"max_turns": 10, "temperature": 0.5},
        "runs": {"n": 2},
    }
    assert changes(then, then) == []
    assert changes(then, now) == ["agent (agent.py)", "sampling (temperature 0.5, was not given)"]
    assert changes({}, {"runs": {"n": 3}}) == ["runs (n 3, was not given)"]
    many = {"agent": {f"{n}.py": f"sha256:{n}" for n in range(9)}}
    assert changes({}, many) == ["agent (0.py, 1.py, 2.py, 3.py, 4.py, and 4 more)"]


@pytest.mark.parametrize(("text", "rows"), [("3", {3}), ("3,7,10-12", {3, 7, 10, 11, 12}), (" 1 - 2 , 0", {0, 1, 2})])
def test_rows_are_chosen_by_number(text, rows):
    choice = RowChoice(text)
    assert {number for number in range(20) if choice(number)} == rows
    assert choice.last == max(rows)


@pytest.mark.parametrize("text", ["", "a", "3,", "-1", "3-1", "1-2-3", "1.5", "٣"])
def test_other_texts_choose_no_rows(text):
    with pytest.raises(ValueError):
        RowChoice(text)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=5))
def test_the_first_chosen_row_that_a_dataset_lacks_is_known(ranges):
    choice = RowChoice(",".join(f"{start}-{start + more}" for start, more in ranges))
    numbers = [number for number in range(50) if choice(number)]
    for count in range(len(numbers) + 1):
        assert choice.after(count) == (numbers[count] if count < len(numbers) else None)


def test_the_address_of_the_model_server_is_an_input_and_has_no_password(tmp_path, monkeypatch):
    (tmp_path / "d.jsonl").write_text('{"user_prompt": "a"}\n')
    given = {"module": "osmosis_grpc.testing.calculator:CalculatorAgent", "dataset": str(tmp_path / "d.jsonl")}

    def of(**options):
        run = RunOptions(**given, **options)
        return inputs(run, Choices(command="eval"), prepare(run, Choices(command="eval")))

    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    before = of(model="tiny")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:2/v1")
    said = "model (base_url http://127.0.0.1:2/v1, was http://127.0.0.1:1/v1)"
    assert changes(before, of(model="tiny")) == [said]
    assert changes(before, of(model="tiny", base_url="http://127.0.0.1:1/v1")) == []
    assert "127.0.0.1" not in str(of(model="mock:echo"))
    with pytest.raises(ModelError, match="--base-url: has a user name"):
        of(model="mock:echo", base_url="http://ada:s3cret@host/v1")
