"""The coding agent mends repositories in a local sandbox, in this process and on a server."""

import json
import re
import subprocess
from collections import Counter

import pytest

from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig
from osmosis_grpc.compat.agentic.coding_agent import patch_of
from osmosis_grpc.policies import ScriptedPolicy
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.trainer import Trainer
from tests.compat.agentic.repositories import FINISH, OFF_BY_ONE, REPOSITORIES, TESTS, edit
from tests.compat.agentic.scripted import Script, calls
from tests.processes import run, server_process


def coding(*replies, **options):
    return AgenticRollout(AgenticRolloutConfig(agent_type="coding", agent_options=options), Script(*replies))


def written(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", REPOSITORIES)
@pytest.mark.row("ARL 22")
async def test_the_coding_agent_fixes_a_failing_repository(name, tmp_path):
    files, replies, changed = REPOSITORIES[name]
    rollout = coding(*replies, repository=written(tmp_path, files), test_command=TESTS)
    trajectory = await rollout.run("Make the tests pass.")
    found = trajectory.metadata
    assert (trajectory.stop_reason, trajectory.final_reward) == ("finish_tool", 1.0), trajectory.error or found
    assert (found["files_touched"], found["tests"]["exit_code"]) == (changed, 0)
    assert found["phases"][-2:] == ["edit", "test"]
    assert [line[6:] for line in found["patch"].splitlines() if line.startswith("+++ b/")] == changed
    runs = [s.tool_result["return_code"] for s in trajectory.steps if s.tool_name == "bash_executor" and s.tool_result]
    assert runs[-1] == 0
    assert any(step.tool_result for step in trajectory.steps)
    assert {path: (tmp_path / path).read_text() for path in files} == files


@pytest.mark.slow
@pytest.mark.row("ARL 22")
async def test_tests_that_still_fail_have_the_reward_zero(tmp_path):
    wrong = edit("pages.py", "- 1", "- 2")
    rollout = coding(wrong, FINISH, repository=written(tmp_path, OFF_BY_ONE), test_command=TESTS)
    trajectory = await rollout.run("Make the tests pass.")
    assert (trajectory.final_reward, trajectory.metadata["tests"]["exit_code"]) == (0.0, 1)


@pytest.mark.slow
@pytest.mark.row("ARL 22")
async def test_show_shows_every_call_of_the_served_coding_agent(tmp_path):
    """Three rollouts at once on a server; their files and tests travel in the request."""
    with server_process("-m", "osmosis_grpc.agentic:coding", "--state-dir", str(tmp_path / "state")) as (_, target):
        policy = ScriptedPolicy({name: replies for name, (_, replies, _) in REPOSITORIES.items()})
        async with Trainer([target], policy) as trainer:
            for name, (files, replies, _) in REPOSITORIES.items():
                outcome = await trainer.rollout(
                    rollout_id=name,
                    messages=[{"role": "user", "content": "Make the tests pass."}],
                    metadata={"files": files, "test_command": TESTS},
                )
                assert (outcome.status, outcome.finish_reason) == ("COMPLETED", "finish_tool"), outcome.failure
                assert outcome.reward == 1.0
                assert outcome.extra_fields["patch"].startswith("--- ")
                assert outcome.samples["main"].trainable
            for name, (_, replies, _) in REPOSITORIES.items():
                shown = run("-m", "osmosis_grpc", "show", name, "--from", target)
                asked = [call["function"] for reply in replies for call in reply.get("tool_calls", ())]
                assert shown.returncode == 0, shown.stderr
                assert shown.stdout.count("      result (") == len(asked), shown.stdout
                for tool, count in Counter(call["name"] for call in asked).items():
                    assert f"tool {tool}: {count} call" in shown.stdout, shown.stdout
                    assert len(re.findall(rf"\b{tool} \{{", shown.stdout)) == count, shown.stdout


@pytest.mark.row("ARL 22")
def test_a_wrong_repository_and_tools_without_a_sandbox_are_refused():
    with pytest.raises(InvalidArgument, match="repository: 'nowhere' is not a folder"):
        coding(repository="nowhere")
    with pytest.raises(InvalidArgument, match="tools_config: names no tool that works in a sandbox"):
        AgenticRollout(AgenticRolloutConfig(agent_type="coding", tools_config={"calculator": {}}), Script())


def test_a_patch_has_changes_new_and_removed_files():
    before, after = {"a": b"1\n2\n", "b": b"x", "same": b"s", "bin": b"\0"}, {"a": b"1\n3\n", "c": b"n\n", "same": b"s"}
    patch = patch_of(before, after)
    assert "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n" in patch
    assert "--- a/b\n+++ /dev/null\n" in patch
    assert "--- /dev/null\n+++ b/c\n" in patch
    assert "bin" not in patch


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0c", "\x1e", "\r"], ids=lambda mark: f"{ord(mark):04x}")
def test_a_patch_applies_to_files_with_characters_that_some_take_for_the_end_of_a_line(tmp_path, mark):
    old = f"one{mark}two\nthree\n"
    new = f"one{mark}2\nthree{mark}four"
    (tmp_path / "a").write_bytes(old.encode())
    patch = patch_of({"a": old.encode()}, {"a": new.encode()})
    subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "a").read_bytes() == new.encode()


@pytest.mark.row("ARL 5")
async def test_the_tools_of_a_configuration_work_with_their_options():
    replies = [
        calls(("calculator", {"expression": "1/3"})),
        calls(*[("bash_executor", {"command": f"echo needle > f{n}.txt"}) for n in range(7)]),
        calls(("search", {"command": "search_text", "pattern": "needle", "path": "."})),
        "42",
    ]
    config = AgenticRolloutConfig(
        agent_type="tool",
        tools_config={"calculator": {"precision": 3}, "search": {"max_results": 5}, "bash_executor": {}},
    )
    trajectory = await AgenticRollout(config, Script(*replies)).run("Q")
    results = [step.tool_result for step in trajectory.steps if step.step_type == "action_result"]
    assert results[0]["result"] == 0.333, results[0]
    assert len(results[-1]["matches"]) == 5, json.dumps(results)


@pytest.mark.row("ARL 21")
async def test_the_calls_of_a_reply_run_at_once_in_a_sandbox():
    """Each program waits for the file of the other one."""
    meet = "touch {}; while [ ! -e {} ]; do sleep 0.02; done; echo met"
    both = calls(*[("bash_executor", {"command": meet.format(*names)}) for names in ("ab", "ba")])
    config = AgenticRolloutConfig(agent_type="tool", tools_config={"bash_executor": {"timeout": 15}})
    trajectory = await AgenticRollout(config, Script(both, "42")).run("Q")
    results = [step.tool_result for step in trajectory.steps if step.step_type == "action_result"]
    assert [result["stdout"] for result in results] == ["met\n", "met\n"], results


@pytest.mark.row("ARL 41")
async def test_an_agent_takes_back_its_edits_and_a_created_file():
    def edits(*named):
        return [calls(("file_editor", {"path": "f.txt", "command": name} | more)) for name, more in named]

    replies = edits(
        ("create", {"file_text": "one\n"}), ("str_replace", {"old_str": "one", "new_str": "two"}), ("undo_edit", {}),
        ("view", {}), ("insert", {"insert_line": 1, "new_str": "end"}), ("undo_edit", {}), ("undo_edit", {}),
        ("view", {}),
    )  # fmt: skip
    config = AgenticRolloutConfig(agent_type="tool", tools_config={"file_editor": {}})
    trajectory = await AgenticRollout(config, Script(*replies, "42")).run("Q")
    results = [step for step in trajectory.steps if step.step_type == "action_result"]
    assert [step.metadata["success"] for step in results] == [True] * 7 + [False]
    assert results[3].tool_result["content"] == "     1\tone"
    assert "removed" in results[6].tool_result["message"]
    assert "f.txt does not exist" in results[7].metadata["error"]


@pytest.mark.row("ARL 8")
async def test_each_rollout_has_a_sandbox_of_its_own():
    """Rollouts at once write to the same paths. Each tool sees what its own rollout has written."""
    code = "import json; open('notes', 'a').write('!'); print(open('notes').read())"

    async def llm(messages, **params):
        question = next(message for message in messages if message["role"] == "user")["content"]
        edits = [{"command": "create", "file_text": f"{question}\n"}, {"command": "undo_edit"}]
        replies = [
            calls(("bash_executor", {"command": f"echo {question} >> all; cat all"})),
            calls(*[("file_editor", {"path": "edited"} | edit) for edit in (edits[0], edits[1], edits[0])]),
            calls(("search", {"command": "search_text", "pattern": "^q", "regex": True})),
            calls(("python_executor", {"code": f"open('notes', 'w').write('{question}'); {code}"})),
            "done",
        ]
        return replies[sum(message["role"] == "assistant" for message in messages)]

    tools = {name: {} for name in ("bash_executor", "file_editor", "search", "python_executor")}
    config = AgenticRolloutConfig(
        agent_type="tool", tools_config=tools, concurrent_requests=5, agent_options={"max_parallel_calls": 1}
    )
    questions = [f"q{n}" for n in range(5)]
    for question, made in zip(questions, await AgenticRollout(config, llm).run_batch(questions), strict=True):
        results = [step.tool_result for step in made.steps if step.step_type == "action_result"]
        assert all(step.metadata.get("success", True) for step in made.steps), made.error or results
        assert (results[0]["stdout"], results[-1]["stdout"]) == (f"{question}\n", f"{question}!\n")
        assert [match["line_content"] for match in results[-2]["matches"]] == [question, question]
