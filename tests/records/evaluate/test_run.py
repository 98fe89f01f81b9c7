"""Runs over a dataset: results, the folder, concurrency, and replays."""

import asyncio
import json
import random
from contextlib import closing

import pytest

from osmosis_grpc.engine.recorded_chats import resolve_references
from osmosis_grpc.policies import EchoPolicy, ToolCallingMock
from osmosis_grpc.protocol.errors import ResourceExhausted, Unavailable
from osmosis_grpc.records.evaluate import (
    Dataset,
    DatasetError,
    RecordedReplies,
    Run,
    RunConfig,
    RunError,
    RunFolder,
    Summary,
)
from osmosis_grpc.records.evaluate.results import Price
from osmosis_grpc.rollout import RolloutAgentLoop
from osmosis_grpc.storage import Reader
from osmosis_grpc.testing.calculator import CalculatorAgent

QUESTIONS = [("What is 2 + 3?", "5"), ("What is 7 / 2?", "3.5"), ("What is 6 * 7?", "42")]


class Picky(RolloutAgentLoop):
    """Fails at some questions."""

    name = "picky"

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        if "fail" in messages[-1]["content"]:
            raise ValueError("I do not like this")
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages, reward=1.0)


@pytest.fixture
def dataset(tmp_path):
    return made(tmp_path, [{"user_prompt": question, "ground_truth": answer} for question, answer in QUESTIONS])


def made(folder, rows):
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Dataset(path)


async def run(agent, policy, dataset, path, **config):
    folder, results, summary = RunFolder.create(path, {}), {}, Summary()

    def on_result(result, outcome):
        results[result.row_index] = result
        summary.add(result)

    await Run(agent, policy, folder, RunConfig(**config)).run(dataset.rows(), on_result)
    return folder, results, summary


async def test_every_row_is_a_rollout_in_a_journal(tmp_path, dataset):
    folder, results, summary = await run(CalculatorAgent(), ToolCallingMock(), dataset, tmp_path / "run")
    assert [results[row].reward for row in range(3)] == [1.0, 0.0, 1.0]  # the mock rounds
    assert (summary.total, summary.passed, summary.mean_reward) == (3, 3, pytest.approx(2 / 3))
    assert sorted(result["row_index"] for result in folder.results()) == [0, 1, 2]
    reader = Reader.look(folder.path)
    (entry,) = reader.find(results[1].rollout_id)
    assert entry.outcome.reward == 0.0
    assert entry.init.request.label == "3.5"
    assert entry.init.request.metadata == {"row_index": 1, "ground_truth": "3.5"}
    reader.close()


async def test_a_row_that_fails_leaves_the_others_alone(tmp_path):
    dataset = made(tmp_path, [{"user_prompt": text} for text in ("a", "fail", "c")])
    _, results, summary = await run(Picky(), EchoPolicy(), dataset, tmp_path / "run")
    assert [results[row].status for row in range(3)] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert (results[1].reason, results[1].error, results[1].line) == (
        "AGENT_EXCEPTION",
        "ValueError: I do not like this",
        2,
    )
    assert results[1].where.endswith(" in Picky.run")
    assert results[1].reward is None
    assert (summary.passed, summary.failed) == (2, 1)


async def test_a_row_that_is_refused_has_a_result(tmp_path, dataset):
    class NoTools(Picky):
        def get_tools(self, request):
            raise KeyError("tools")

    _, results, _ = await run(NoTools(), EchoPolicy(), dataset, tmp_path / "run")
    assert {result.status for result in results.values()} == {"REFUSED"}
    assert "tools" in results[0].error


async def test_an_agent_that_ignores_the_parameters_of_the_run_is_one_warning(tmp_path, dataset, caplog):
    await run(Picky(), EchoPolicy(), dataset, tmp_path / "run", completion_params={"temperature": 0.0, "max_tokens": 9})
    said = [record.getMessage() for record in caplog.records]
    (warning,) = said
    assert "temperature and max_tokens" in warning


async def test_a_run_can_pin_its_parameters(tmp_path, dataset, caplog):
    seen = []

    class Stubborn(Picky):
        async def run(self, ctx):
            await ctx.chat(ctx.request.messages, temperature=1.0, top_p=0.5)
            return ctx.complete()

    async def policy(request):
        seen.append(dict(request.params))
        return await EchoPolicy()(request)

    config = {"completion_params": {"temperature": 0.0, "max_tokens": 9}, "pin_completion_params": True}
    first, results, _ = await run(Stubborn(), policy, dataset, tmp_path / "run", **config)
    assert seen
    assert all(params == {"temperature": 0.0, "max_tokens": 9, "top_p": 0.5} for params in seen)
    assert not caplog.records
    replies = RecordedReplies(RunFolder.open(str(first.path)))
    _, again, _ = await run(Stubborn(), replies, dataset, tmp_path / "again", **config)
    assert {row: result.status for row, result in again.items()} == dict.fromkeys(results, "COMPLETED")


async def test_rows_run_at_the_same_time_up_to_the_limit(tmp_path):
    dataset = made(tmp_path, [{"user_prompt": str(number)} for number in range(6)])
    running, most, three = set(), [], asyncio.Event()

    async def policy(request):
        running.add(request.rollout_id)
        most.append(len(running))
        if len(running) == 3:
            three.set()
        await three.wait()
        running.remove(request.rollout_id)
        return await EchoPolicy()(request)

    await run(Picky(), policy, dataset, tmp_path / "run", concurrency=3)
    assert max(most) == 3


async def test_a_model_that_is_away_for_a_moment_is_asked_again(tmp_path, dataset):
    tries = []

    async def policy(request):
        tries.append(request.rollout_id)
        if len(tries) == 1:
            raise Unavailable("busy", retry_after=0.01)
        return await EchoPolicy()(request)

    _, _, summary = await run(Picky(), policy, dataset, tmp_path / "run", concurrency=1)
    assert (summary.passed, len(tries)) == (3, 4)


async def test_tokens_and_cost_are_summed(tmp_path, dataset):
    _, results, summary = await run(Picky(), EchoPolicy(), dataset, tmp_path / "run", price=Price(1_000_000, 2_000_000))
    assert summary.cost == pytest.approx(summary.prompt_tokens + 2 * summary.completion_tokens)
    assert results[0].token_usage["num_llm_calls"] == 1


async def test_an_error_in_a_later_row_ends_the_run_after_the_rows_before_it(tmp_path):
    dataset = made(tmp_path, [{"user_prompt": "a"}, {"user_prompt": "b"}, {"other": 1}, {"user_prompt": "d"}])
    folder = RunFolder.create(tmp_path / "run", {})
    with pytest.raises(DatasetError, match=r"data.jsonl:3: has no column"):
        await Run(Picky(), EchoPolicy(), folder, RunConfig(concurrency=1)).run(dataset.rows(), lambda *_: None)
    assert [result["row_index"] for result in folder.results()] == [0, 1]


async def replayed(tmp_path, agent, dataset, first):
    return await run(agent, RecordedReplies(RunFolder.open(str(first.path))), dataset, tmp_path / "again")


async def test_a_replay_gets_the_same_replies_and_tokens(tmp_path, dataset):
    first, before, _ = await run(CalculatorAgent(), ToolCallingMock(), dataset, tmp_path / "run")
    second, after, _ = await replayed(tmp_path, CalculatorAgent(), dataset, first)
    assert [after[row].reward for row in range(3)] == [before[row].reward for row in range(3)]
    readers = [Reader.look(folder.path) for folder in (first, second)]
    for row in range(3):
        one, other = (
            reader.find(results[row].rollout_id)[0].outcome
            for reader, results in zip(readers, (before, after), strict=True)
        )
        assert list(one.messages) == list(other.messages)
        (sample,), (same,) = one.samples.values(), other.samples.values()
        assert [segment.ids.tolist() for segment in sample.segments] == [s.ids.tolist() for s in same.segments]
    for reader in readers:
        reader.close()


def results_of(folder):
    """The reward and the bytes of all token arrays of each rollout, by row."""
    found = {}
    with closing(Reader.look(folder.path)) as reader:
        for rollout_id in reader.newest(1000):
            (entry,) = reader.find(rollout_id)
            outcome = resolve_references(entry.outcome, reader.trajectory)
            segments = [segment for sample in outcome.samples.values() for segment in sample.segments]
            arrays = [(each.ids.tobytes(), each.logprobs.tobytes(), each.mask_runs, each.chats) for each in segments]
            found[rollout_id.rpartition("-")[2]] = outcome.status, outcome.reward, arrays
    return found


@pytest.mark.slow
async def test_a_replay_of_100_rollouts_has_the_same_tokens_and_rewards_to_the_byte(tmp_path):
    chance = random.Random(1)
    numbers = [(chance.randint(1, 99), chance.randint(1, 9)) for _ in range(100)]
    dataset = made(
        tmp_path, [{"user_prompt": f"What is {a} / {b}?", "ground_truth": str(round(a / b, 1))} for a, b in numbers]
    )
    policy = ToolCallingMock(tokens=16)
    first, _, _ = await run(CalculatorAgent(), policy, dataset, tmp_path / "run", concurrency=16)
    second, _, _ = await run(
        CalculatorAgent(), RecordedReplies(RunFolder.open(str(first.path))), dataset, tmp_path / "2", concurrency=16
    )
    before, after = results_of(first), results_of(second)
    assert len(before) == 100
    assert all(arrays and all(ids and logprobs for ids, logprobs, *_ in arrays) for *_, arrays in before.values())
    assert {reward for _, reward, _ in before.values()} == {0.0, 1.0}
    assert after == before


async def test_a_replay_of_an_agent_that_asks_something_else_fails_with_the_chat(tmp_path, dataset):
    first, _, _ = await run(Picky(), EchoPolicy(), dataset, tmp_path / "run")

    class Changed(Picky):
        async def run(self, ctx):
            messages = [*ctx.request.messages, {"role": "user", "content": "And why?"}]
            return ctx.complete([*messages, (await ctx.chat(messages)).message])

    _, results, _ = await replayed(tmp_path, Changed(), dataset, first)
    assert {result.reason for result in results.values()} == {"CHAT_REFUSED"}
    said = f"chat 1 of sample main of row 0 is not the chat that {first.path} has: "
    assert said in results[0].error
    assert "number 2 from user was not there and is 'And why?'" in results[0].error


async def test_a_replay_of_a_row_that_was_not_run_fails(tmp_path, dataset):
    first, _, _ = await run(Picky(), EchoPolicy(), made(tmp_path, [{"user_prompt": "a"}]), tmp_path / "run")
    dataset = made(tmp_path, [{"user_prompt": "a"}, {"user_prompt": "b"}])
    _, results, _ = await replayed(tmp_path, Picky(), dataset, first)
    assert [results[row].status for row in (0, 1)] == ["COMPLETED", "FAILED"]
    assert "has no reply to chat 1 of sample main of row 1" in results[1].error


async def test_a_chat_that_failed_fails_again(tmp_path, dataset):
    async def down(request):
        raise Unavailable("the model is down", retry_after=5)

    first, _, _ = await run(Picky(), down, dataset, tmp_path / "run", trainer_grace=0.0)
    _, results, _ = await replayed(tmp_path, Picky(), dataset, first)
    assert {result.status for result in results.values()} == {"FAILED"}
    assert "the model is down" in results[0].error


def test_a_folder_has_only_one_run(tmp_path):
    RunFolder.create(tmp_path / "run", {})
    with pytest.raises(RunError, match="has a run already; name another folder with --save-dir"):
        RunFolder.create(tmp_path / "run", {})


def test_a_folder_that_is_no_run_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=r"is not the folder of a run: it has no run\.json"):
        RunFolder.open(str(tmp_path))
    with pytest.raises(RunError, match=r"there is no run in \.osmosis/runs"):
        RunFolder.open("last")
    (tmp_path / "run.json").write_text('{"schema_version": 7}')
    with pytest.raises(RunError, match="has version 7, and this program reads version 1"):
        RunFolder.open(str(tmp_path))
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json cannot be read"):
        RunFolder.open(str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot be made: .*; name another folder with --save-dir"):
        RunFolder.create(tmp_path / "file" / "run", {})


class OneAtATime(Picky):
    """Accepts a rollout if no other one runs, as an engine whose memory is full."""

    def __init__(self, most):
        self.left = most

    def get_tools(self, request):
        if not self.left:
            raise ResourceExhausted("the memory is full")
        self.left -= 1
        return []

    async def run(self, ctx):
        outcome = await super().run(ctx)
        self.left += 1
        return outcome


async def test_a_row_waits_while_the_other_rollouts_fill_the_memory(tmp_path, dataset, monkeypatch):
    monkeypatch.setattr("osmosis_grpc.records.evaluate.run.FULL_RETRY", 0.01)
    _, results, _ = await run(OneAtATime(1), EchoPolicy(), dataset, tmp_path / "run", concurrency=3)
    assert {result.status for result in results.values()} == {"COMPLETED"}
    _, results, _ = await run(OneAtATime(0), EchoPolicy(), dataset, tmp_path / "none", concurrency=3)
    assert {result.status for result in results.values()} == {"REFUSED"}
