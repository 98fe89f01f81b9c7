"""Batches, saved trajectories, files and statistics."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_grpc.agentic import (
    AgenticRollout,
    AgenticRolloutConfig,
    StepType,
    StopReason,
    Trajectory,
    TrajectorySaveError,
    TrajectoryStep,
    dump_trajectories,
    load_trajectories,
    statistics_of,
)
from osmosis_grpc.compat.agentic.files import TrajectoryFile
from osmosis_grpc.protocol.errors import InvalidArgument
from tests.compat.agentic.scripted import Script, calls
from tests.waiting import until

ANSWER = "Final Answer: 42"


def rollout_of(llm, agent_type="react", **config):
    return AgenticRollout(AgenticRolloutConfig(agent_type=agent_type, **config), llm)


async def echo(messages, **params):
    """Answers with the question; the question `fail` fails."""
    question = next(message for message in messages if message["role"] == "user")["content"]
    if question == "fail":
        raise ValueError("no model")
    await asyncio.sleep(0.001 * (7 - int(question)) if question.isdigit() else 0)  # later prompts end first
    return f"Final Answer: {question}"


@pytest.mark.row("ARL 7")
async def test_results_are_in_the_order_of_the_prompts_and_a_failure_stays_alone():
    prompts = [str(n) for n in range(7)] + ["fail", 3, "last"]
    made = await rollout_of(echo, concurrent_requests=3, batch_size=4).run_batch(prompts)
    assert [each.get_final_response() for each in made] == [*map(str, range(7)), "", "", "last"]
    assert [each.stop_reason for each in made[7:9]] == [StopReason.LLM_ERROR, StopReason.ERROR]
    assert made[8].error.startswith("InvalidArgument: prompt: 3 is not")


@pytest.mark.row("ARL 7")
async def test_a_slow_rollout_delays_no_other_one():
    """With all slots in use, N prompts take N/k times the time of one, also if one takes as long as all others."""
    others = asyncio.Event()
    ended = 0

    async def llm(messages, **params):
        nonlocal ended
        if messages[-1]["content"] == "slow":
            await others.wait()
        else:
            ended += 1
            if ended == 30:
                others.set()
        return ANSWER

    made = await rollout_of(llm, concurrent_requests=2).run_batch(["slow", *["Q"] * 30])
    assert [each.stop_reason for each in made] == [StopReason.FINAL_ANSWER] * 31


@pytest.mark.row("ARL 7")
async def test_few_trajectories_wait_for_a_slow_one():
    slow, started = asyncio.Event(), []

    async def llm(messages, **params):
        started.append(messages[-1]["content"])
        if messages[-1]["content"] == "0":
            await slow.wait()
        return ANSWER

    async def all_of(batches):
        return [len(batch) async for batch in batches]

    prompts = map(str, range(100))
    running = asyncio.ensure_future(all_of(rollout_of(llm, concurrent_requests=2, batch_size=3).batches(prompts)))
    await until(lambda: len(started) == 2 * 2 + 3)
    assert next(prompts) == "8"  # the next one has been read and waits
    slow.set()
    assert await running == [3] * 33
    assert len(started) == 99


@pytest.mark.row("ARL 7")
async def test_a_batch_that_is_left_stops_its_rollouts():
    llm = Script(ANSWER, seconds=3600)
    running = asyncio.ensure_future(rollout_of(llm).run_batch(["Q"] * 9))
    await until(lambda: llm.running == 4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert llm.running == 0


@pytest.mark.parametrize("agent_type", ["react", "tool"])
@pytest.mark.row("ARL 8")
async def test_a_hundred_rollouts_at_once_share_nothing(agent_type):
    async def llm(messages, **params):
        question = next(message for message in messages if message["role"] == "user")["content"]
        results = [message["content"] for message in messages if "seen:" in str(message.get("content"))]
        await asyncio.sleep(0)
        if not results:
            text, call = f"Action: look('{question}')", calls(("look", {"what": question}))
            return text if agent_type == "react" else call
        return ("Final Answer: " if agent_type == "react" else "") + results[-1].removeprefix("Observation: ")

    made = rollout_of(llm, agent_type, concurrent_requests=100)
    made.agent.set_tools({"look": look})
    trajectories = await made.run_batch([f"q{n}" for n in range(100)])
    assert [each.get_final_response() for each in trajectories] == [f"seen:q{n}" for n in range(100)]
    assert len({each.request_id for each in trajectories}) == 100


async def look(what: str):
    await asyncio.sleep(0)
    return f"seen:{what}"


@pytest.mark.slow
@pytest.mark.row("ARL 31")
async def test_a_thousand_rollouts_at_once_are_a_thousand_records(tmp_path):
    made = rollout_of(
        Script(ANSWER), concurrent_requests=1000, save_trajectories=True, trajectory_save_path=str(tmp_path)
    )
    await made.run_batch(["Q"] * 1000)
    saved = load_trajectories(tmp_path / "trajectories.jsonl")
    assert len(saved) == len({each.request_id for each in saved}) == 1000


@pytest.mark.row("ARL 31")
async def test_the_agent_of_a_rollout_saves_too(tmp_path):
    made = rollout_of(Script(ANSWER), save_trajectories=True, trajectory_save_path=str(tmp_path))
    trajectory = await made.agent.run_trajectory({"content": "Q"}, Script(ANSWER), "mine")
    assert load_trajectories(tmp_path / "trajectories.jsonl") == [trajectory]


@pytest.mark.row("ARL 31")
async def test_a_failure_to_save_surfaces_and_keeps_the_trajectory(tmp_path):
    folder = tmp_path / "there"
    made = rollout_of(Script(ANSWER), save_trajectories=True, trajectory_save_path=str(folder))
    (folder / "trajectories.jsonl").unlink()
    folder.rmdir()
    with pytest.raises(TrajectorySaveError, match=r"there/trajectories.jsonl: .* cannot be saved") as raised:
        await made.run("Q")
    assert raised.value.trajectories[0].get_final_response() == "42"
    with pytest.raises(TrajectorySaveError) as raised:
        await made.run_batch(["Q", "Q"])
    assert len(raised.value.trajectories) == 2
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InvalidArgument, match=r"trajectory_save_path: .* cannot be written"):
        rollout_of(Script(), save_trajectories=True, trajectory_save_path=str(blocked / "x"))


WRITER = """
import sys
from pathlib import Path
from osmosis_grpc.agentic import Trajectory
from osmosis_grpc.compat.agentic.files import TrajectoryFile
file, name = TrajectoryFile(Path(sys.argv[1])), sys.argv[2]
for number in range(100_000):
    file.append([Trajectory(request_id=f"{name}-{number}", error="x" * 300_000)])
    print(f"{name}-{number}", flush=True)
"""


@pytest.mark.slow
@pytest.mark.row("ARL 31")
def test_a_killed_writer_tears_no_record(tmp_path):
    """Two processes write to one file and are killed at some moment, three times."""
    path, reported = tmp_path / "t.jsonl", set()
    for life in range(3):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(path), f"{life}{n}"], stdout=subprocess.PIPE, text=True)
            for n in range(2)
        ]
        reported |= {writers[0].stdout.readline().strip() for _ in range(3 + life)}
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            lines = writer.stdout.read().split("\n")
            reported |= set(lines[:-1])
            writer.stdout.close()
    TrajectoryFile(path).append([Trajectory(request_id="last")])
    saved = [each.request_id for each in load_trajectories(path)]
    assert len(saved) == len(set(saved))
    assert reported | {"last"} <= set(saved)


@pytest.mark.row("ARL 31")
def test_a_torn_line_is_left_out_and_removed_by_the_next_writer(tmp_path):
    path = tmp_path / "t.jsonl"
    file = TrajectoryFile(path)
    file.append([Trajectory(request_id="a")])
    with path.open("ab") as torn:
        torn.write(b'{"request_id": "b", "st' * 10_000)
    assert [each.request_id for each in load_trajectories(path)] == ["a"]
    file.append([Trajectory(request_id="c")])
    assert [each.request_id for each in load_trajectories(path)] == ["a", "c"]
    assert path.read_bytes().count(b"\n") == 2
    assert path.read_bytes().endswith(b"\n")


def example():
    def step(kind, **fields):
        return TrajectoryStep(step_type=kind, content="é\n", **fields)

    good = Trajectory(
        request_id="a", is_completed=True, final_reward=1.0, total_tokens=10, stop_reason="final_answer",
        messages=[{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}],
        steps=[
            step(StepType.OBSERVATION), step(StepType.ACTION, tool_name="add", duration=1.0),
            step(StepType.ACTION_RESULT, tool_name="add", tool_result=0, metadata={"success": True}, duration=9.0),
            step(StepType.ACTION, duration=3.0), step(StepType.ACTION_RESULT, metadata={"success": False}),
            step(StepType.FINAL_ANSWER, duration=2.0),
        ],
    )  # fmt: skip
    bad = Trajectory(request_id="b", final_reward=0.0, stop_reason="llm_error", error="e", total_tokens=5)
    return [good, bad, Trajectory(request_id="c", stop_reason="cancelled", total_tokens=1)]


@pytest.mark.row("ARL 30")
def test_statistics_are_those_that_were_computed_by_hand():
    made = statistics_of(example())
    assert (made.trajectories, made.completed, made.tokens, made.rewarded) == (3, 1, 16, 2)
    assert made.steps == {"observation": 1, "thought": 0, "action": 2, "action_result": 2, "final_answer": 1}
    assert (made.tool_calls, made.malformed_calls, made.tool_success_rate) == ({"add": 1}, 1, 0.5)
    assert (made.latency_p50, made.latency_p95) == (2.0, 3.0)
    assert (made.reward_mean, made.reward_std) == (0.5, 0.5)
    assert made.stop_reasons == {"final_answer": 1, "llm_error": 1, "cancelled": 1}
    assert str(made).splitlines() == [
        "3 trajectories, 1 completed",
        "ends: final_answer 1, llm_error 1, cancelled 1",
        "steps: observation 1, action 2, action_result 2, final_answer 1",
        "tool calls: add 1; 50% of the results are no errors; 1 malformed",
        "reward: mean 0.5, deviation 0.5, of 2",
        "seconds for a reply: median 2, p95 3",
        "tokens: 16",
    ]
    empty = statistics_of([])
    assert str(empty).splitlines()[-2:] == ["tool calls: none", "tokens: unknown"]
    assert (empty.reward_mean, empty.latency_p50, empty.tool_success_rate, empty.tokens) == (None,) * 4
    assert statistics_of(example()[0]).trajectories == 1


@pytest.mark.parametrize("kind", ["json", "jsonl"])
@pytest.mark.row("ARL 32")
def test_trajectories_are_written_and_read_back(tmp_path, kind):
    dump_trajectories(example(), tmp_path / "t", kind)
    assert load_trajectories(tmp_path / "t", kind) == example()
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


@pytest.mark.row("ARL 32")
def test_messages_and_text(tmp_path):
    dump_trajectories(example(), tmp_path / "m", "messages")
    loaded = load_trajectories(tmp_path / "m", "messages")
    assert [each.messages for each in loaded[:1]] == [example()[0].messages]
    assert [each.request_id for each in loaded] == ["a", "b", "c"]
    dump_trajectories(example(), tmp_path / "t", "txt")
    assert "[action add]\né\n" in (tmp_path / "t").read_text()
    for read, text in (("txt", "is for people"), ("xml", "is none of")):
        with pytest.raises(InvalidArgument, match=f"format: '{read}' {text}"):
            load_trajectories(tmp_path / "t", read)
    with pytest.raises(InvalidArgument, match="format: 'xml' is none of json, jsonl, messages, txt"):
        dump_trajectories([], tmp_path / "x", "xml")


@pytest.mark.parametrize(("kind", "text"), [("jsonl", "{}\n"), ("jsonl", "3\n"), ("json", "{"), ("messages", "[]\n")])
@pytest.mark.row("ARL 32")
def test_a_damaged_file_is_refused_by_name(tmp_path, kind, text):
    path = Path(tmp_path / "t")
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"t(:1)?: is|request_id: is missing"):
        load_trajectories(path, kind)


@pytest.mark.row("ARL 25")
def test_every_field_is_in_the_file(tmp_path):
    dump_trajectories(example(), tmp_path / "t")
    first = json.loads((tmp_path / "t").read_text().splitlines()[0])
    assert first["steps"][2]["tool_result"] == 0
    assert os.stat(tmp_path / "t").st_size > 0


@pytest.mark.parametrize("prompts", ["one text", {"content": "one"}, None])
@pytest.mark.row("ARL 7")
async def test_one_prompt_is_no_batch(prompts):
    script = Script("Final Answer: 1")
    with pytest.raises(InvalidArgument, match=f"prompts: is a {type(prompts).__name__}; pass a list of prompts"):
        await AgenticRollout(AgenticRolloutConfig(), script).run_batch(prompts)
    assert script.asked == []


@pytest.mark.row("ARL 7")
async def test_a_wrong_field_of_the_request_is_named_before_a_rollout_begins():
    script = Script(ANSWER)
    with pytest.raises(InvalidArgument, match=r"request.labl: is not a field; did you mean label\?"):
        await rollout_of(script).run("Q", labl="42")
    with pytest.raises(InvalidArgument, match=r"request.budget: is not a field; the fields are completion_params, "):
        await rollout_of(script).run_batch(["Q"], budget=3)
    assert script.asked == []
