"""Runs with eval functions: several rollouts of each row, scores in the journal, and runs that were stopped."""

import asyncio
import contextlib
import json
import resource
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.cli.command_options import Choices, RunOptions
from osmosis_grpc.cli.dataset_options import inputs, prepare
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.protocol.errors import FailedPrecondition, Unavailable
from osmosis_grpc.protocol.types import RolloutFilter, events
from osmosis_grpc.records.evaluate import Dataset, ModelError, RecordedReplies, Run, RunConfig, RunError, RunFolder
from osmosis_grpc.records.evaluate.dataset import RowChoice
from osmosis_grpc.records.evaluate.eval_functions import EvalFunction, Scorer
from osmosis_grpc.records.evaluate.inputs import changes
from osmosis_grpc.records.evaluate.results import Price
from osmosis_grpc.rollout import RolloutAgentLoop
from osmosis_grpc.storage import Reader


class TwoChats(RolloutAgentLoop):
    """Asks twice."""

    name = "two"
    replayable = True

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for _ in range(2):
            messages.append((await ctx.chat(messages)).message)
            messages.append({"role": "user", "content": "and now?"})
        return ctx.complete(messages[:-1], reward=0.25)


class NotReplayable(TwoChats):
    """Does not continue with recorded replies."""

    replayable = False


def exact(solution_str, ground_truth):
    return float(ground_truth in solution_str)


def length(messages):
    return len(messages)


FUNCTIONS = [EvalFunction("rewards:exact", exact), EvalFunction("rewards:length", length)]


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "data.jsonl"
    rows = [{"user_prompt": f"Say {number}", "ground_truth": str(number)} for number in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Dataset(path)


def folder_of(path):
    if RunFolder.exists(path):
        folder = RunFolder.open(str(path))
        folder.resume({})
        return folder
    return RunFolder.create(path, {"command": "eval"})


def rows_of(dataset, runs=1, attempt=1):
    for row in dataset.rows():
        for index in range(runs):
            yield replace(row, run_index=index, runs=runs, attempt=attempt)


async def run(dataset, folder, policy=None, functions=FUNCTIONS, rows=None, agent=None, **config):
    """Run the rows without a result, and return the results."""
    results = []
    known = folder.newest_results()
    rows = rows or (row for row in rows_of(dataset, 2) if (row.number, row.run_index) not in known)
    scorer = Scorer(functions, 5.0)
    running = Run(agent or TwoChats(), policy or EchoPolicy(), folder, RunConfig(evaluation=True, **config), scorer)
    try:
        await running.run(rows, lambda result, outcome: results.append(result))
    finally:
        folder.unlock()
    return results


def entries(folder):
    reader = Reader.look(folder.path)
    try:
        return reader.entries(None, 0, 1000, RolloutFilter())
    finally:
        reader.close()


def trajectory(folder, rollout_id, attempt=1):
    reader = Reader.look(folder.path)
    try:
        return [event.kind for event in reader.trajectory(rollout_id, attempt)]
    finally:
        reader.close()


async def test_the_runs_of_a_row_are_a_group_and_each_has_the_scores_of_every_function(tmp_path, dataset):
    folder = folder_of(tmp_path / "run")
    results = await run(dataset, folder)
    assert sorted((each.row_index, each.run_index) for each in results) == [(r, i) for r in range(3) for i in range(2)]
    assert all(each.scores == {"rewards:exact": 0.0, "rewards:length": 4.0} for each in results)
    assert {each.reward for each in results} == {0.25}
    requests = [entry.init.request for entry in entries(folder)]
    assert {(each.group.id, each.group.size) for each in requests} == {(folder.rollout_id(row), 2) for row in range(3)}
    assert {each.rollout_id: each.group.index for each in requests} == {
        folder.rollout_id(f"{row}.{index}"): index for row in range(3) for index in range(2)
    }
    assert all(each.evaluation for each in requests)


async def test_a_score_is_an_annotation_and_the_agents_reward_stays(tmp_path, dataset):
    folder = folder_of(tmp_path / "run")
    (first, *_) = await run(dataset, folder)
    kinds = trajectory(folder, first.rollout_id)
    given = [kind.annotation for kind in kinds if isinstance(kind, events.Annotated)]
    assert [(each.author, each.labels, each.reward) for each in given] == [
        ("eval", (name,), score) for name, score in first.scores.items()
    ]
    assert [kind.outcome.reward for kind in kinds if isinstance(kind, events.Ended)] == [0.25]


async def test_a_rollout_that_failed_has_no_scores_and_a_failed_score_has_its_text(tmp_path, dataset):
    def picky(solution_str, ground_truth):
        return float("nan") if ground_truth == "1" else 1

    class Fails(TwoChats):
        async def run(self, ctx):
            if ctx.request.label == "2":
                raise ValueError("no")
            return await super().run(ctx)

    functions = [EvalFunction("picky", picky), *FUNCTIONS]
    folder = folder_of(tmp_path / "run")
    results = await run(dataset, folder, functions=functions, rows=rows_of(dataset), agent=Fails())
    first, second, third = sorted(results, key=lambda result: result.row_index)
    assert (first.good, first.score_errors, set(first.scores)) == (True, {}, {each.name for each in functions})
    assert (second.good, second.completed) == (False, True)
    assert second.score_errors == {"picky": "it returned nan, not a finite number"}
    assert set(second.scores) == {"rewards:exact", "rewards:length"}
    assert (third.good, third.status, third.scores, third.score_errors) == (False, "FAILED", {}, {})


class Stuck:
    """Answers the first `count` chats, and then no more."""

    def __init__(self, count):
        self.asked = []
        self.count = count
        self.stuck = asyncio.Event()

    async def __call__(self, request):
        self.asked.append((request.rollout_id, request.chat_number))
        if len(self.asked) > self.count:
            self.stuck.set()
            await asyncio.Event().wait()
        reply = await EchoPolicy()(request)
        return replace(reply, usage={"prompt_tokens": 1_000_000, "completion_tokens": 0})


async def stopped(dataset, folder, policy, **config):
    """Run until the policy is stuck, and stop."""
    task = asyncio.create_task(run(dataset, folder, policy, **config))
    await policy.stuck.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("count", [0, 1, 2, 5, 11])
async def test_a_run_that_was_stopped_continues_where_it_was(tmp_path, dataset, count):
    policy, path = Stuck(count), tmp_path / "run"
    price = Price(1.0, 0.0)
    await stopped(dataset, folder_of(path), policy, concurrency=2, price=price)
    folder = folder_of(path)
    before = folder.newest_results()
    again = Stuck(99)
    await run(dataset, folder, again, price=price)
    results = list(folder.results())
    keys = [(each["row_index"], each["run_index"]) for each in results]
    assert sorted(keys) == [(row, index) for row in range(3) for index in range(2)]
    assert {(each["status"], each["error"]) for each in results} == {("COMPLETED", None)}
    assert {each["cost"] for each in results} == {2.0}
    answered = policy.asked[:count]
    assert len(answered) + len(again.asked) == 12
    assert not set(answered) & set(again.asked)
    assert all(key in folder.newest_results() for key in before)
    assert len(entries(folder)) == 6
    assert folder.about["resumed"] == 1


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_rollout_that_cannot_continue_runs_again_as_a_higher_attempt(tmp_path, dataset, count):
    path, policy, again = tmp_path / "run", Stuck(count), Stuck(99)
    await stopped(dataset, folder_of(path), policy, concurrency=2, agent=NotReplayable(), price=Price(1.0, 0.0))
    folder = folder_of(path)
    done = folder.newest_results()
    await run(dataset, folder, again, agent=NotReplayable(), price=Price(1.0, 0.0))
    results = list(folder.results())
    keys = [(each["row_index"], each["run_index"]) for each in results]
    assert sorted(keys) == [(row, index) for row in range(3) for index in range(2)]
    assert {(each["status"], each["error"]) for each in results} == {("COMPLETED", None)}
    assert {each["attempt"] for each in results} == {1, 2}
    assert all(folder.newest_results()[key] == result for key, result in done.items())
    assert sum(each["cost"] for each in results) == count + len(again.asked)


async def test_an_outcome_whose_result_was_lost_is_scored_and_not_made_again(tmp_path, dataset):
    path = tmp_path / "run"
    results = await run(dataset, folder_of(path))
    lines = (path / "results.jsonl").read_bytes()
    (path / "results.jsonl").write_bytes(lines[: lines.rindex(b'{"success') + 20])
    policy = Stuck(99)
    folder = folder_of(path)
    assert len(folder.newest_results()) == 5
    (again,) = await run(dataset, folder, policy, functions=FUNCTIONS)
    assert policy.asked == []
    (same,) = [each for each in results if each.rollout_id == again.rollout_id]
    assert (again.scores, again.reward, again.attempt) == (same.scores, same.reward, 1)
    assert len(list(folder.results())) == 6
    annotated = [kind for kind in trajectory(folder, again.rollout_id) if isinstance(kind, events.Annotated)]
    assert len(annotated) == 2


async def test_a_row_that_failed_runs_again_as_a_higher_attempt(tmp_path, dataset):
    async def refuses(request):
        raise FailedPrecondition("no")

    path = tmp_path / "run"
    await run(dataset, folder_of(path), refuses)
    folder = folder_of(path)
    assert {each.status for each in folder.newest_results().values()} == {"FAILED"}
    await run(dataset, folder, rows=rows_of(dataset, 2, attempt=2))
    assert {(each.status, each.attempt) for each in folder.newest_results().values()} == {("COMPLETED", 2)}
    assert len(list(folder.results())) == 12
    replayed = folder_of(tmp_path / "replayed")
    policy = RecordedReplies(folder)
    assert {each.status for each in await run(dataset, replayed, policy)} == {"COMPLETED"}


async def test_two_processes_do_not_run_in_one_folder(tmp_path):
    folder = folder_of(tmp_path / "run")
    with pytest.raises(RunError, match="is in use by process"):
        folder_of(tmp_path / "run")
    with pytest.raises(RunError, match="is in use by process"):
        RunFolder.open(str(tmp_path / "run")).archive()
    folder.unlock()
    moved = RunFolder.open(str(tmp_path / "run")).archive()
    assert not (tmp_path / "run").exists()
    assert RunFolder.exists(moved)


async def test_a_damaged_line_of_the_results_is_named(tmp_path, dataset):
    folder = folder_of(tmp_path / "run")
    await run(dataset, folder)
    lines = (folder.path / "results.jsonl").read_text().splitlines()
    (folder.path / "results.jsonl").write_text("\n".join([lines[0], lines[1][:9], *lines[2:], ""]))
    with pytest.raises(RunError, match=r"results\.jsonl:2 is damaged; delete this line"):
        folder.newest_results()


@contextlib.contextmanager
def files_of_at_most(size):
    """Let no file grow above `size` bytes, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_journal_that_cannot_be_written_ends_the_run_and_refuses_no_row(tmp_path, dataset):
    folder = folder_of(tmp_path / "run")
    rows = (replace(row, run_index=index, runs=1000) for row in dataset.rows() for index in range(1000))
    with files_of_at_most(200_000), pytest.raises(Unavailable, match="the journal cannot be written"):
        await run(dataset, folder, rows=rows, concurrency=8)
    assert {result["status"] for result in folder.results()} <= {"COMPLETED"}


def test_a_result_that_does_not_fit_on_the_disk_damages_no_other(tmp_path):
    folder = folder_of(tmp_path / "run")
    row = {"row_index": 0, "line": 1, "rollout_id": "eval-a-0", "status": "COMPLETED"}
    folder.add(row)
    with files_of_at_most(100), pytest.raises(OSError, match=r"No space left|File too large"):
        folder.add(row)
    folder.add(row | {"row_index": 1})
    assert [result["row_index"] for result in folder.results()] == [0, 1]


@pytest.mark.parametrize("line", ["null", "[]", '{"row_index": 1}'])
def test_a_line_that_is_no_result_is_damaged(tmp_path, line):
    folder = folder_of(tmp_path / "run")
    (tmp_path / "run/results.jsonl").write_text(f"{line}\n")
    with pytest.raises(RunError, match=r"results.jsonl:1 is damaged"):
        folder.newest_results()


def test_a_dataset_whose_name_is_not_utf_8_has_a_run(tmp_path):
    name = "d\udcff ü.jsonl"  # Python's name for a byte that is not UTF-8
    RunFolder.create(tmp_path / "run", {"dataset": name})
    assert RunFolder.open(str(tmp_path / "run")).about["dataset"] == name


async def test_rollouts_that_a_crash_has_left_refuse_no_other_row(tmp_path, dataset):
    path, policy = tmp_path / "run", Stuck(0)
    await stopped(dataset, folder_of(path), policy, rows=rows_of(dataset, 2), concurrency=6)
    folder = folder_of(path)
    await run(dataset, folder, rows=(row for row in rows_of(dataset, 3) if row.run_index == 2), concurrency=1)
    assert [result["status"] for result in folder.results()] == ["COMPLETED"] * 3


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
