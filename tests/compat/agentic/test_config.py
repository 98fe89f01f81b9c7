"""The configuration: each field changes what happens, and each wrong field is named."""

import pytest

from osmosis_grpc.agent.context import get_rollout_context
from osmosis_grpc.agentic import (
    AgenticRollout,
    AgenticRolloutConfig,
    BaseAgent,
    Trajectory,
    agent_runnable,
    clear_registry,
    get_agent_class,
    list_agents,
    load_trajectories,
    policy_of,
    register_agent,
    register_tool,
)
from osmosis_grpc.compat.agentic.agent_registry import GROUP
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import Trainer
from tests.compat.agentic.scripted import Script, calls, kinds

ANSWER = "Final Answer: 42"
LOOK = "Action: look()"
CONFIG = AgenticRolloutConfig


@pytest.fixture(autouse=True)
def _clean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    clear_registry()


async def ran(llm, prompt="Q", **config):
    return await AgenticRollout(CONFIG(**config), llm).run(prompt)


@pytest.mark.row("ARL 1")
async def test_agent_type():
    assert kinds(await ran(Script("42"), agent_type="react", max_steps=1)) == ["observation", "thought"]
    assert kinds(await ran(Script("42"), agent_type="tool", max_steps=1)) == ["observation", "final_answer"]


@pytest.mark.row("ARL 1")
async def test_max_steps_max_tokens_per_step_and_temperature():
    llm = Script(LOOK)
    trajectory = await ran(llm, max_steps=3, max_tokens_per_step=77, temperature=0.25)
    assert (len(llm.asked), trajectory.stop_reason) == (3, "max_steps")
    assert llm.params == [{"max_tokens": 77, "temperature": 0.25}] * 3


@pytest.mark.row("ARL 1")
async def test_tools_config():
    class Look:
        def __init__(self, answer="nothing"):
            self.answer = answer

        async def execute(self):
            return self.answer

    register_tool("arl01_look", Look)
    llm = Script("Action: arl01_look()", ANSWER)
    trajectory = await ran(llm, tools_config={"arl01_look": {"answer": "a cat"}})
    assert trajectory.steps[2].tool_result == "a cat"
    with pytest.raises(InvalidArgument, match=r"tools_config.arl01_look.colour: is not an option; .* answer"):
        await ran(llm, tools_config={"arl01_look": {"colour": 1}})
    with pytest.raises(InvalidArgument, match=r"tools_config.fly: is not a tool; the tools are .*arl01_look"):
        await ran(llm, tools_config={"fly": {}})


@pytest.mark.row("ARL 1")
async def test_interactions_config():
    config = {"check_answer": {"expected": "42", "hint": "No."}}
    right = await ran(Script("Final Answer: 41", ANSWER), interactions_config=config)
    wrong = await ran(Script("Final Answer: 41"), interactions_config=config)
    assert kinds(right) == ["observation", "final_answer", "observation", "final_answer"]
    assert (right.final_reward, wrong.final_reward) == (1.0, 0.0)
    assert right.messages[-2] == {"role": "user", "content": "No."}
    with pytest.raises(InvalidArgument, match=r"interactions_config.chat: is not an interaction; .*check_answer"):
        await ran(Script(), interactions_config={"chat": {}})
    with pytest.raises(InvalidArgument, match=r"interactions_config.check_answer: .*'hints'"):
        await ran(Script(), interactions_config={"check_answer": {"expected": "", "hints": ""}})


@pytest.mark.row("ARL 1")
async def test_batch_size():
    rollout = AgenticRollout(CONFIG(batch_size=3), Script(ANSWER))
    assert [len(batch) async for batch in rollout.batches(list("abcdefgh"))] == [3, 3, 2]


@pytest.mark.row("ARL 1")
async def test_concurrent_requests():
    for most in (1, 3):
        llm = Script(ANSWER, seconds=0.02)
        await AgenticRollout(CONFIG(concurrent_requests=most), llm).run_batch(list("abcdef"))
        assert llm.most == most


@pytest.mark.row("ARL 1")
async def test_include_trajectory_in_output():
    for included in (True, False):
        [output] = await AgenticRollout(
            CONFIG(include_trajectory_in_output=included), Script(ANSWER)
        ).generate_sequences(["Q"])
        assert (output["response"], "trajectory" in output) == ("42", included)


@pytest.mark.row("ARL 1")
async def test_save_trajectories_and_trajectory_save_path(tmp_path, monkeypatch):
    await ran(Script(ANSWER))
    assert list(tmp_path.iterdir()) == []
    saved = await ran(Script(ANSWER), save_trajectories=True)
    assert load_trajectories("trajectories/trajectories.jsonl") == [saved]
    saved = await ran(Script(ANSWER), save_trajectories=True, trajectory_save_path="there/mine.jsonl")
    assert load_trajectories("there/mine.jsonl") == [saved]
    monkeypatch.setenv("AGENTIC_SAVE_TRAJECTORIES", "true")
    await ran(Script(ANSWER), trajectory_save_path="by_variable")
    await ran(Script(ANSWER), trajectory_save_path="not", save_trajectories=False)
    assert [path.name for path in tmp_path.glob("*/*.jsonl")].count("trajectories.jsonl") == 2
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"agent_typ": "react"}, "agent_typ"),
        ({"colour": 1}, "colour"),
        ({"agent_type": ""}, "agent_type"),
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": "3"}, "max_steps"),
        ({"max_tokens_per_step": True}, "max_tokens_per_step"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"tools_config": "tools.yaml"}, "tools_config"),
        ({"tools_config": {"search": 5}}, "tools_config.search"),
        ({"interactions_config": []}, "interactions_config"),
        ({"batch_size": 0}, "batch_size"),
        ({"concurrent_requests": None}, "concurrent_requests"),
        ({"include_trajectory_in_output": "yes"}, "include_trajectory_in_output"),
        ({"save_trajectories": 1}, "save_trajectories"),
        ({"trajectory_save_path": ""}, "trajectory_save_path"),
        ({"agent_options": 3}, "agent_options"),
    ],
)
@pytest.mark.parametrize("make", [CONFIG.from_dict, lambda fields: CONFIG(**fields)], ids=["dict", "keywords"])
@pytest.mark.row("ARL 1")
def test_a_wrong_field_is_refused_by_name(fields, field, make):
    with pytest.raises(InvalidArgument) as refused:
        make(fields)
    assert refused.value.violations[0][0] == field


@pytest.mark.parametrize(
    ("config", "llm", "tools", "text"),
    [
        ({"agent_type": "react"}, Script(ANSWER), (), r"config: is a dict, .*from_dict"),
        (AgenticRolloutConfig(), "gpt-4", (), r"llm_generate_func: 'gpt-4' is not callable; .*OpenAIFunction"),
        (AgenticRolloutConfig(), None, (), "llm_generate_func: None is not callable"),
        (AgenticRolloutConfig(), Script(ANSWER), Script(ANSWER), "tools: is a Script; pass a list of tools"),
    ],
)
@pytest.mark.row("ARL 1")
def test_a_wrong_argument_is_refused_by_name(config, llm, tools, text):
    with pytest.raises(InvalidArgument, match=text):
        AgenticRollout(config, llm, tools=tools)


@pytest.mark.row("ARL 1")
def test_a_configuration_survives_dict_json_and_yaml():
    config = CONFIG(
        agent_type="tool", max_steps=3, tools_config={"search": {"max_results": 5}}, batch_size=2, temperature=0.1,
        trajectory_save_path="é", agent_options={"max_parallel_calls": 2},
    )  # fmt: skip
    assert CONFIG.from_dict(config.to_dict()) == config
    assert CONFIG.from_json(config.to_json()) == config
    assert CONFIG.from_yaml(config.to_yaml()) == config
    for read, text in ((CONFIG.from_json, "{"), (CONFIG.from_yaml, "a: ["), (CONFIG.from_json, "[]")):
        with pytest.raises(InvalidArgument, match="config: is "):
            read(text)


@pytest.mark.row("ARL 1")
async def test_a_configuration_in_the_metadata_arrives_over_grpc_as_it_was():
    config = CONFIG(agent_type="tool", max_steps=3, tools_config={"calculator": {"precision": 5}}, temperature=0.1)
    found = []

    class Reads(BaseAgent):
        async def run_trajectory(self, prompt, llm_generate_func, request_id="", **kwargs):
            found.append(CONFIG.from_dict(get_rollout_context().request.metadata["config"]))
            return Trajectory(request_id=request_id, is_completed=True)

    async with (
        AgentServer([agent_runnable(Reads(), "reads")], port=0) as server,
        Trainer([server.address], policy_of(Script(ANSWER))) as trainer,
    ):
        request = {"messages": [{"role": "user", "content": "Q"}], "metadata": {"config": config.to_dict()}}
        assert (await trainer.rollout(rollout_id="r", **request)).status is OutcomeStatus.COMPLETED
    assert found == [config]
    assert type(found[0].max_steps) is int


@pytest.mark.parametrize(
    ("agent_type", "replies"),
    [
        ("react", ["Action: calculator(expression='6*7')", ANSWER]),
        ("tool", [calls(("calculator", {"expression": "6*7"})), "42"]),
        ("coding", [calls(("bash_executor", {"command": "echo 42"})), "42"]),
    ],
)
@pytest.mark.row("ARL 3")
async def test_each_agent_type_runs_from_its_configuration_alone(agent_type, replies):
    tools = None if agent_type == "coding" else {"calculator": {}}
    trajectory = await ran(Script(*replies), agent_type=agent_type, tools_config=tools)
    assert kinds(trajectory) == ["observation", "action", "action_result", "final_answer"]
    assert "42" in str(trajectory.steps[2].tool_result)
    assert (trajectory.is_completed, trajectory.get_final_response()) == (True, "42")


@pytest.mark.row("ARL 3")
def test_an_unknown_agent_type_is_refused_with_the_known_ones():
    with pytest.raises(InvalidArgument, match="agent_type: 'reasoning' is not an agent type; the types are coding"):
        AgenticRollout(CONFIG(agent_type="reasoning"), Script())


@pytest.mark.row("ARL 4")
async def test_the_options_reach_the_agent_and_an_unread_one_is_refused():
    llm = Script("hm")
    trajectory = await ran(llm, agent_options={"max_parse_errors": 2, "system_prompt": "Be brief."})
    assert (trajectory.stop_reason, len(llm.asked)) == ("parse_errors", 2)
    assert llm.asked[0][0]["content"].startswith("Be brief.\n\nAnswer the question.")
    with pytest.raises(InvalidArgument, match=r"agent_options.max_files: the agent react has the options .*max_parse"):
        await ran(llm, agent_options={"max_files": 3})
    with pytest.raises(InvalidArgument, match="max_parallel_calls: 0"):
        await ran(llm, agent_options={"max_parallel_calls": 0})


@pytest.mark.row("ARL 4")
async def test_a_field_is_no_option():
    with pytest.raises(InvalidArgument, match=r"agent_options.max_steps: is a field of the configuration"):
        await ran(Script(), agent_options={"max_steps": 3})


@pytest.mark.row("ARL 4")
async def test_an_agent_of_an_author_gets_its_options():
    made = []

    @register_agent("arl04_open")
    class Open(Silent):
        def __init__(self, color="red", **kwargs):
            super().__init__(**kwargs)
            made.append((color, self.max_steps))

    @register_agent("arl04_closed")
    class Closed(Silent):
        def __init__(self, max_steps=10):
            super().__init__(max_steps)

    await ran(Script(), agent_type="arl04_open", agent_options={"color": "blue"}, max_steps=3)
    assert made == [("blue", 3)]
    with pytest.raises(InvalidArgument, match=r"agent_options: the agent arl04_open cannot be made: .*'colour'"):
        await ran(Script(), agent_type="arl04_open", agent_options={"colour": "blue"})
    with pytest.raises(
        InvalidArgument, match=r"agent_type: 'arl04_closed': Closed\(\) does not take max_tokens_per_step"
    ):
        await ran(Script(), agent_type="arl04_closed")


class Silent(BaseAgent):
    async def run_trajectory(self, prompt, llm_generate_func, request_id="", **kwargs):
        return Trajectory(request_id=request_id)


@pytest.mark.row("ARL 16")
async def test_agents_are_registered_listed_found_and_cleared():
    assert register_agent("silent")(Silent) is Silent
    assert (get_agent_class("silent"), list_agents()) == (Silent, ["coding", "react", "silent", "tool"])
    for name in ("silent", "react"):
        with pytest.raises(ValueError, match=f"the agent type '{name}' is registered already"):
            register_agent(name)(Silent)
    assert (await ran(Script(), agent_type="silent")).steps == []
    clear_registry()
    assert list_agents() == ["coding", "react", "tool"]


@pytest.mark.row("ARL 16")
def test_agents_of_installed_packages_are_found(tmp_path, monkeypatch):
    (tmp_path / "arl16_agents.py").write_text("class Far: pass\n")
    info = tmp_path / "arl16-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: arl16\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nfar = arl16_agents:Far\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "far" in list_agents()
    assert get_agent_class("far").__name__ == "Far"
