"""Every Python block of seed page 004 runs as the page has it, with only its import lines changed."""

import ast
import inspect
import json
import re
from pathlib import Path

import pytest

from osmosis_grpc.agentic import ClaudeAPIClient, StopReason
from osmosis_grpc.protocol.errors import InvalidArgument
from tests.compat.agentic.model_servers import serving

HERE = Path(__file__).parent
SEEDS = HERE.parents[2] / "shared" / "seeds"
BLOCKS = sorted((HERE / "blocks" / "agentic").glob("*.py"), key=lambda path: path.name)
IMPORT = re.compile(r"\s*(from \S+ )?import ")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


async def run_block(name):
    """The names that a block leaves behind."""
    (path,) = [path for path in BLOCKS if path.stem[len("seed004_01_") :] == name]
    names = {"__name__": "seed_block"}
    preamble = HERE / "agentic_preamble.py"
    exec(compile(preamble.read_text(), preamble, "exec"), names)
    ended = eval(compile(path.read_text(), path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.isawaitable(ended):
        await ended
    return names


def test_only_the_import_lines_of_the_page_are_changed_and_no_block_is_missing():
    pages = list(SEEDS.glob("004_*"))
    if not pages:
        pytest.skip(f"the seed pages are not beside the checkout: no {SEEDS}/004_*")
    of_page = re.findall(r"```python\n(.*?)```", pages[0].read_text(), re.S)
    assert len(of_page) == len(BLOCKS) == 10
    for text, path in zip(of_page, BLOCKS, strict=True):
        for theirs, ours in zip(text.splitlines(), path.read_text().splitlines(), strict=True):
            assert theirs == ours or (IMPORT.match(theirs) and IMPORT.match(ours)), path.stem


async def test_the_basic_block_runs_although_its_function_returns_nothing():
    names = await run_block("basic")
    assert names["trajectory"].stop_reason is StopReason.LLM_ERROR  # the page leaves the function to its reader


async def test_the_tool_block_calculates():
    names = await run_block("tools")
    assert names["result"].get_final_response() == "12"
    assert names["result"].steps[3].tool_result == {"result": 12.0, "expression": "144 ** 0.5"}


async def test_the_custom_agent_runs_a_tool():
    names = await run_block("custom_agent")
    agent = names["agent"]
    agent.set_tools({"calculator": Calculator()})
    trajectory = await agent.run_trajectory({"content": "144?"}, names["your_llm_func"], "r")
    assert [step.step_type.value for step in trajectory.steps] == [
        "observation",
        "action",
        "action_result",
        "final_answer",
    ]
    assert (trajectory.get_final_response(), trajectory.is_completed) == ("12", True)


class Calculator:
    async def execute(self, expression: str):
        return {"expression": expression, "result": 12.0}


async def test_the_batch_of_verl_has_an_output_for_each_row():
    names = await run_block("verl")
    assert [output["response"] for output in names["output_data"]] == ["12"]


async def test_the_configuration_builds_working_tools():
    names = await run_block("config")
    rollout = names["AgenticRollout"](config=names["config"], llm_generate_func=names["your_llm_func"])
    trajectory = await rollout.run({"content": "144?"})
    assert trajectory.steps[3].tool_result["result"] == 12
    saved = Path("trajectories/trajectories.jsonl").read_text().splitlines()
    assert [json.loads(line)["request_id"] for line in saved] == [trajectory.request_id]


async def test_the_analysis_writes_a_trajectory_that_is_json(capsys):
    await run_block("analysis")
    assert capsys.readouterr().out == "Total steps: 1\nTool calls: 0\nFinal reward: 1.0\n"
    assert json.loads(Path("trajectory.json").read_text())["steps"][0]["content"] == "12"


async def test_the_search_tool_runs_once_its_search_is_written():
    names = await run_block("web_search")

    async def search_web(self, query):
        return [query] * 9

    names["WebSearchTool"].search_web = search_web
    step = await names["rollout"].agent.execute_tool_call("web_search", {"query": "x", "max_results": 2})
    assert step.tool_result == {"query": "x", "results": ["x", "x"], "found": 9}


async def test_the_batch_has_a_trajectory_for_each_prompt():
    names = await run_block("batch")
    assert [each.request_id for each in names["trajectories"]] == ["batch_0", "batch_1", "batch_2"]
    assert {each.get_final_response() for each in names["trajectories"]} == {"12"}


async def test_the_claude_function_of_the_page_answers(monkeypatch):
    said = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Final Answer: 12"}]}
    async with serving(said | {"stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_MODEL", "claude")
        names = await run_block("models")
        trajectory = await names["rollout"].run("144?")
    assert trajectory.get_final_response() == "12"
    assert (server.bodies[0]["model"], server.headers[0]["x-api-key"]) == ("claude", "your-key")


async def test_the_claude_client_needs_a_model(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_MODEL", raising=False)
    with pytest.raises(InvalidArgument, match="model: is missing; give model, or set ANTHROPIC_MODEL"):
        ClaudeAPIClient(api_key="k")


async def test_the_configuration_of_verl_is_one_of_ours():
    names = await run_block("verl_config")
    assert names["AgenticRolloutConfig"].from_dict(names["rollout_config"]["agent_config"]).max_steps == 10
