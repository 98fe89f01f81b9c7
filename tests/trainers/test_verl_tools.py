"""verl's tools run in our agents, and ours in verl's registry. Run by `make test-trainers`."""

import pytest

from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.tools import tool
from tests.compat.agentic.scripted import Script

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("verl")

SCHEMA = {
    "type": "function",
    "function": {
        "name": "notes",
        "description": "Keeps words.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}


def verl_tool(log):
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

    class Notes(BaseTool):
        """Keeps the words of each instance."""

        def __init__(self, *args):
            super().__init__(*args)
            self.words = {}

        async def create(self, instance_id=None, **kwargs):
            made, response = await super().create(instance_id)
            self.words[made] = [kwargs["create_kwargs"]["first"]]
            return made, response

        async def execute(self, instance_id, parameters, **kwargs):
            self.words[instance_id].append(parameters["word"])
            return ToolResponse(text=" ".join(self.words[instance_id])), 0.0, {}

        async def calc_reward(self, instance_id, **kwargs):
            log.append("reward")
            return 1.0

        async def release(self, instance_id, **kwargs):
            log.append(self.words.pop(instance_id))

    return Notes({}, OpenAIFunctionToolSchema.model_validate(SCHEMA))


@pytest.mark.row("ARL 49")
async def test_a_verl_tool_keeps_its_state_in_a_rollout_and_is_released():
    from osmosis_grpc.integrations.verl_tools import tool_of_verl

    log = []
    llm = Script("Action: notes(word='a')", "Action: notes()", "Action: notes(word='b')", "Final Answer: x")
    made = AgenticRollout(AgenticRolloutConfig(), llm, tools=[tool_of_verl(verl_tool(log), first="0")])
    for trajectory in await made.run_batch(["p", "q"]):
        results = [step for step in trajectory.steps if step.step_type == "action_result"]
        assert [step.tool_result for step in results if step.metadata["success"]] == ["0 a", "0 a b"]
        assert results[1].metadata["error_type"] == "bad_arguments"
    assert log.count("reward") == log.count(["0", "a", "b"]) == 2 == len(log) / 2
    assert "- notes: Keeps words.\n    word (string, required)" in llm.asked[0][0]["content"]
    with pytest.raises(InvalidArgument, match="given: is a int, not a BaseTool or FunctionTool of verl"):
        tool_of_verl(3)


@pytest.mark.row("ARL 49")
async def test_tools_of_both_sides_run_as_function_tools():
    from verl.tools.function_tool import function_tool, get_function_tool, normalize_function_tool_return

    from osmosis_grpc.integrations.verl_tools import offer_to_verl, tool_of_verl

    @tool
    async def arl49_double(number: int) -> int:
        """Doubles a number."""
        return 2 * number

    assert offer_to_verl(arl49_double) is arl49_double
    offered = get_function_tool("arl49_double")
    assert offered.tool_schema.function.description == "Doubles a number."
    assert normalize_function_tool_return(await offered.call({"number": 21}))[0].text == "42"

    @function_tool("arl49_triple")
    def triple(number: int) -> str:
        """Triples a number.

        Args:
            number: A number.
        """
        return str(3 * number)

    llm = Script("Action: arl49_triple(number=14)", "Final Answer: x")
    tools = [tool_of_verl(get_function_tool("arl49_triple"))]
    trajectory = await AgenticRollout(AgenticRolloutConfig(), llm, tools=tools).run("Q")
    assert trajectory.steps[2].tool_result == "42"
    with pytest.raises(InvalidArgument, match="tool: 3 is not what @tool makes"):
        offer_to_verl(3)
