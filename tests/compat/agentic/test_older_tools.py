"""The library's classes of tools, its options, and its ways of passing tools."""

import importlib

import numpy as np
import pytest

from osmosis_grpc import agentic
from osmosis_grpc.agentic import (
    AgenticRollout,
    AgenticRolloutConfig,
    BaseAgenticTool,
    BashExecutorTool,
    CalculatorTool,
    FileEditorTool,
    LLMAPIClient,
    SearchTool,
    SimpleAgenticTool,
    ToolResult,
    Trajectory,
    create_agentic_rollout,
    create_openai_tool_schema,
    list_tools,
    register_tool,
    register_tool_instance,
)
from osmosis_grpc.compat.agentic.verl_batch import is_data_proto, tensors
from osmosis_grpc.compat.older_paths import recorded
from osmosis_grpc.compat.older_sentences import LIBRARY
from osmosis_grpc.protocol.errors import InvalidArgument

LIBRARYS = sorted({name for names in recorded("library").values() for name in names})


def calls(*texts):
    """Make an LLM function that calls tools, one after the other, and then answers."""
    replies = [f"Thought: go\nAction: {text}" for text in texts] + ["Thought: done\nFinal Answer: done"]

    async def llm(messages, **params):
        return replies[sum(message["role"] == "assistant" for message in messages)]

    return llm


async def results(llm, tools=None, **config):
    """Run a rollout, and return the contents of its results."""
    rollout = AgenticRollout(AgenticRolloutConfig(**config), llm)
    if tools is not None:
        rollout.tools = tools
    trajectory = await rollout.run("go")
    assert trajectory.is_completed, trajectory.error
    return [step.content for step in trajectory.steps if step.step_type == "action_result"], trajectory


class Counter(BaseAgenticTool):
    """Counts the calls of each instance."""

    def __init__(self, config=None):
        super().__init__(config)
        self.counts, self.released = {}, []

    def get_openai_tool_schema(self):
        return create_openai_tool_schema("count", "Counts.", {"by": {"type": "integer"}}, ["by"])

    async def _initialize_instance(self, instance_id, **kwargs):
        self.counts[instance_id] = self.config.get("start", 0)

    async def execute_tool(self, instance_id, parameters, **kwargs):
        if parameters["by"] < 0:
            return ToolResult(success=False, error="below zero")
        self.counts[instance_id] += parameters["by"]
        return ToolResult(success=True, result={"count": self.counts[instance_id]}, reward_score=0.5)

    async def _cleanup_instance(self, instance_id, **kwargs):
        self.released.append(instance_id)


class Doubles(SimpleAgenticTool):
    def __init__(self, config=None):
        super().__init__("double", "Doubles.", {"value": {"type": "number"}}, ["value"])

    async def simple_execute(self, parameters, **kwargs):
        return parameters["value"] * 2


class Bare:
    """Has a schema and execute_tool(), and derives from nothing."""

    def get_openai_tool_schema(self):
        return {"type": "function", "function": {"name": "bare", "description": "Bare."}}

    def execute_tool(self, instance_id, parameters):
        return f"in {instance_id}"


@pytest.mark.parametrize("name", LIBRARYS)
@pytest.mark.row("ARL 51")
def test_each_name_of_the_library_works_or_has_a_sentence(name):
    if name in LIBRARY and name not in agentic.__all__:  # a schema of the library has the name of a function of ours
        with pytest.raises(ImportError) as failed:
            getattr(agentic, name)
        assert str(failed.value) == f"{name} is not in osmosis_grpc.agentic: {LIBRARY[name]}"
    else:
        assert getattr(importlib.import_module("osmosis_grpc.agentic"), name) is not None
        assert name in agentic.__all__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError):
        exec("agentic.Nowhere", {"agentic": agentic})


@pytest.mark.row("ARL 52")
async def test_a_tool_with_instances_has_one_for_each_trajectory():
    counter = Counter({"start": 1})
    texts, trajectory = await results(calls("count(by=2)", "count(by=3)", "count(by=-1)"), {"count": counter})
    assert ["3" in texts[0], "6" in texts[1], "below zero" in texts[2]] == [True] * 3
    assert trajectory.final_reward == 1.0
    assert list(counter.counts) == counter.released
    await results(calls("count(by=2)"), {"count": counter})
    assert len(counter.released) == 2


async def test_simple_and_bare_tools_run():
    texts, _ = await results(calls("double(value=4)", "bare()"), [Doubles(), Bare()])
    assert "8" in texts[0]
    assert "in " in texts[1]


@pytest.mark.row("ARL 53")
async def test_setting_the_tools_of_a_rollout_sets_those_of_its_agent():
    rollout = AgenticRollout(AgenticRolloutConfig(), calls("double(value=4)"))
    rollout.tools = {"double": Doubles()}
    rollout.agent.set_tools(rollout.tools)
    assert list(rollout.agent.tools) == ["double"]
    contents = [step.content for step in (await rollout.run("go")).steps if step.step_type == "action_result"]
    assert "8" in contents[0]


@pytest.mark.row("ARL 54")
async def test_tools_of_the_package_have_classes_and_share_the_sandbox():
    tools = {"sh": BashExecutorTool(), "file_editor": FileEditorTool(), "calculator": CalculatorTool({"precision": 3})}
    texts, _ = await results(
        calls(
            "file_editor(command='create', path='a.txt', file_text='hello')",
            "sh(command='cat a.txt')",
            "calculator(expression='2 * 21')",
        ),
        tools,
    )
    assert "hello" in texts[1]
    assert "42" in texts[2]


@pytest.mark.row("ARL 55")
async def test_the_older_options_have_their_effect():
    bash = {"blocked_commands": ["rm"], "allow_dangerous": False, "execution_mode": "local"}
    editor = {"allowed_extensions": [".txt"], "enable_linting": False}
    search = {"exclude_dirs": ["old"], "search_extensions": [".txt"]}
    texts, _ = await results(
        calls(
            "bash_executor(command='mkdir old; echo word > old/a.txt; echo word > b.txt; echo word > c.py')",
            "bash_executor(command='true; /bin/rm b.txt')",
            "file_editor(command='view', path='c.py')",
            "search(command='search_text', pattern='word')",
        ),
        tools_config={"bash_executor": bash, "file_editor": editor, "search": search},
    )
    assert "rm is not allowed" in texts[1]
    assert ".py are not edited" in texts[2]
    assert "b.txt" in texts[3]
    assert "a.txt" not in texts[3]
    assert "c.py" not in texts[3]


@pytest.mark.parametrize(
    ("tool", "option", "value"),
    [
        ("bash_executor", "execution_mode", "k8s"),
        ("bash_executor", "pod_name", "pod"),
        ("bash_executor", "blocked_commands", "rm"),
        ("file_editor", "enable_linting", True),
        ("search", "exclude_dirs", 3),
        ("calculator", "blocked_commands", []),
    ],
)
def test_an_option_that_cannot_be_served_is_refused(tool, option, value):
    with pytest.raises(InvalidArgument, match=f"tools_config.{tool}.{option}"):
        AgenticRollout(AgenticRolloutConfig(tools_config={tool: {option: value}}), calls())
    with pytest.raises(InvalidArgument):
        create_agentic_rollout({"tools_config": {tool: {option: value}}}, llm_generate_func=calls())


def test_a_tool_of_the_package_acts_in_a_rollout_only():
    with pytest.raises(InvalidArgument):
        register_tool_instance(SearchTool())


async def test_tools_are_registered_as_classes_and_as_objects():
    register_tool(Counter, {"start": 5}, "count_from_five")
    register_tool_instance(Doubles())
    assert {"count_from_five", "double"} <= set(list_tools())
    texts, _ = await results(
        calls("count_from_five(by=1)", "double(value=1)"), tools_config={"count_from_five": {}, "double": {}}
    )
    assert "6" in texts[0]
    assert "2" in texts[1]
    with pytest.raises(ValueError):
        register_tool(Counter, {}, "count_from_five")


@pytest.mark.row("ARL 56")
async def test_unknown_keywords_of_run_trajectory_are_ignored():
    rollout = create_agentic_rollout({"max_steps": 3}, llm_generate_func=calls())
    trajectory = await rollout.agent.run_trajectory("go", calls(), "r1", application_id="x", idx=3, label="l")
    assert trajectory.get_final_response() == "done"


def test_a_client_of_the_library_is_a_function_of_openai():
    client = LLMAPIClient("secret-key", "http://127.0.0.1:1/v1", "model", debug=True, max_retries=0)
    assert client.config.retries.attempts == 1
    assert "secret" not in repr(client)
    with pytest.raises(InvalidArgument):
        LLMAPIClient("key", "http://127.0.0.1:1/v1", "model", proxy_url="http://127.0.0.1:2")


def segment(prompt, response, mask, logprobs):
    return {"ids": prompt + response, "mask": [0] * len(prompt) + mask, "logprobs": [0.0] * len(prompt) + logprobs}


@pytest.mark.row("ARL 57")
def test_a_batch_for_verl_has_the_tensors_of_its_own_workers():
    first = segment([11, 12, 13], [21, 22, 31, 32, 23, 24], [1, 1, 0, 0, 1, 1], [-0.1, -0.2, 0, 0, -0.3, -0.4])
    second = segment([11], [41, 42], [1, 1], [-0.5, -0.6])
    rows = [
        Trajectory(request_id="a", segments=[first], final_reward=1.0),
        Trajectory(request_id="b", segments=[second], final_reward=0.0),
    ]
    made = tensors(rows, 0, prompt_length=6, response_length=10)
    assert made["prompts"].tolist() == [[0, 0, 0, 11, 12, 13], [0, 0, 0, 0, 0, 11]]
    assert made["responses"][0].tolist() == [21, 22, 31, 32, 23, 24, 0, 0, 0, 0]
    assert made["response_mask"].tolist() == [[1, 1, 0, 0, 1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert made["attention_mask"].sum(axis=1).tolist() == [9, 3]
    assert made["position_ids"][1].tolist() == [0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    assert np.allclose(made["rollout_log_probs"][0], [-0.1, -0.2, 0, 0, -0.3, -0.4, 0, 0, 0, 0])
    assert made["rm_scores"][0].tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert tensors(rows, 0)["input_ids"].shape == (2, 9)
    unscored = [Trajectory(request_id="c", segments=[second])]
    assert "rm_scores" not in tensors(unscored, 0)


@pytest.mark.parametrize("segments", [[], [segment([1], [2], [1], [0.0])] * 2, [segment([1], [2], [0], [0.0])]])
def test_a_rollout_that_verl_cannot_train_on_is_refused(segments):
    with pytest.raises(InvalidArgument, match="the rollout a"):
        tensors([Trajectory(request_id="a", segments=segments)], 0)
    with pytest.raises(InvalidArgument):
        tensors([Trajectory(request_id="a", segments=[segment([1], [2, 3], [1, 1], [0.0, 0.0])])], 0, response_length=1)


def test_an_object_of_another_kind_is_no_data_proto():
    assert not is_data_proto(type("DataProto", (), {})())
