"""The agents with scripted models, on the engine in this process."""

import asyncio
import inspect
import json

import pytest

from osmosis_grpc.agentic import (
    AgenticRollout,
    AgenticRolloutConfig,
    BaseAgent,
    ReActAgent,
    StepType,
    StopReason,
    ToolAgent,
    Trajectory,
    TrajectoryStep,
)
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.tools import tool
from tests.compat.agentic.scripted import Script, calls, kinds
from tests.waiting import until

ANSWER = "Final Answer: 42"


@tool
async def add(a: int, b: int = 0) -> int:
    """Adds two numbers.

    Args:
        a: the first one
    """
    return a + b


@tool
def fails() -> str:
    """Always fails."""
    raise RuntimeError("no disk")


@tool(timeout=0.02)
async def hangs() -> str:
    """Never returns."""
    await asyncio.sleep(3600)


@tool
def finish(answer: str) -> str:
    """Ends the rollout with an answer."""
    return "done"


TOOLS = (add, fails, hangs, finish)


def rollout_of(llm, agent_type="react", tools=TOOLS, **config):
    made = AgenticRollout(AgenticRolloutConfig(agent_type=agent_type, **config), llm)
    made.agent.set_tools(tools)
    return made


class Counting(BaseAgent):
    """The custom agent of the library's page."""

    async def run_trajectory(self, prompt, llm_generate_func, request_id, **kwargs):
        trajectory = Trajectory(request_id=request_id)
        trajectory.add_step(TrajectoryStep(step_type=StepType.OBSERVATION, content=str(prompt.get("content", prompt))))
        while self.should_continue(trajectory):
            step = self.parse_llm_output(await llm_generate_func(self.format_messages_for_llm(trajectory)))
            trajectory.add_step(step)
            if step.tool_name:
                trajectory.add_step(await self.execute_tool_call(step.tool_name, step.tool_args, trajectory))
        self.finalize_trajectory(trajectory)
        return trajectory


@pytest.mark.row("ARL 15")
async def test_a_custom_agent_runs_a_tool_alone_and_on_the_engine():
    llm = Script("Thought: t\nAction: add(a=40, b=2)", ANSWER)
    agent = Counting(max_steps=8)
    agent.set_tools(TOOLS)
    alone = await agent.run_trajectory({"content": "Q"}, llm, "r")
    made = AgenticRollout(AgenticRolloutConfig(), llm)
    made.agent = agent
    hosted = await made.run({"content": "Q"}, request_id="r")
    for trajectory in (alone, hosted):
        assert kinds(trajectory) == ["observation", "action", "action_result", "final_answer"]
        assert (trajectory.steps[2].tool_result, trajectory.is_completed, trajectory.stop_reason) == (
            "42",
            True,
            "final_answer",
        )
        assert [step.index for step in trajectory.steps] == [0, 1, 2, 3]
    assert hosted.steps == alone.steps
    assert hosted.messages == [*llm.asked[-1], {"role": "assistant", "content": ANSWER}]
    assert llm.asked[1] == llm.asked[3]


@pytest.mark.row("ARL 15")
def test_base_agent_has_the_eleven_methods():
    names = (
        "__init__ set_tools set_interactions run_trajectory should_continue create_system_prompt parse_llm_output "
        "execute_tool_call format_messages_for_llm calculate_step_reward finalize_trajectory"
    )
    assert all(callable(getattr(BaseAgent, name)) for name in names.split())
    assert len(names.split()) == 11
    parameters = {
        "__init__": "self max_steps max_tokens_per_step temperature tools_config",
        "set_tools": "self tools",
        "set_interactions": "self interactions",
        "run_trajectory": "self prompt llm_generate_func request_id kwargs",
        "should_continue": "self trajectory",
        "create_system_prompt": "self",
        "parse_llm_output": "self output expected_type",
        "execute_tool_call": "self tool_name tool_args trajectory",
        "format_messages_for_llm": "self trajectory",
        "calculate_step_reward": "self step trajectory",
        "finalize_trajectory": "self trajectory",
    }
    assert {name: " ".join(inspect.signature(getattr(BaseAgent, name)).parameters) for name in parameters} == parameters
    defaults = inspect.signature(BaseAgent.__init__).parameters.values()
    assert [each.default for each in defaults][1:] == [10, 16000, 0.7, None]
    with pytest.raises(TypeError, match="run_trajectory"):
        BaseAgent()


@pytest.mark.row("ARL 15")
async def test_a_step_for_each_kind_of_reply_and_messages_of_alternating_roles():
    agent = Counting()
    agent.set_tools(TOOLS)
    step = agent.parse_llm_output("Action: add(")
    assert (step.step_type, step.tool_name, step.failed) == (StepType.ACTION, None, True)
    thought = Trajectory(request_id="", steps=[agent.parse_llm_output("Thought: hm")])
    assert agent.format_messages_for_llm(thought)[-1] == {"role": "assistant", "content": "Thought: hm"}
    assert agent.parse_llm_output("hm", StepType.FINAL_ANSWER).step_type is StepType.FINAL_ANSWER
    assert (await agent.execute_tool_call("nope", {})).metadata["error_type"] == "unknown_tool"
    steps = [TrajectoryStep(step_type=kind, content="x") for kind in (StepType.OBSERVATION, StepType.ACTION_RESULT)]
    messages = agent.format_messages_for_llm(Trajectory(request_id="r", steps=steps))
    assert [message["role"] for message in messages] == ["system", "user"]


@pytest.mark.row("ARL 17")
async def test_the_prompt_describes_each_tool_and_the_stored_messages_are_those_sent():
    llm = Script("Thought: hm", "Action: add(", "Action: add(1, 2)\nAction: fails()", ANSWER)
    trajectory = await rollout_of(llm).run(
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Q"}]
    )
    prompt = llm.asked[0][0]["content"]
    assert "- add: Adds two numbers.\n    a (integer, required): the first one\n    b (integer, optional)" in prompt
    assert all(f"- {each.name}: " in prompt for each in TOOLS)
    assert prompt.endswith("\n\nBe kind.")
    assert [message["role"] for message in llm.asked[0]] == ["system", "user"]
    for asked in llm.asked:
        assert json.dumps(trajectory.messages[: len(asked)]) == json.dumps(asked)
    assert len(trajectory.messages) == len(llm.asked[-1]) + 1
    assert [step.content for step in trajectory.steps if step.step_type is StepType.OBSERVATION] == [
        "Q",
        "The reply has no action and no final answer. Give one of them.",
    ]


STOPS = {
    StopReason.FINAL_ANSWER: ("react", [ANSWER], {}, {}),
    StopReason.FINISH_TOOL: ("react", ["Action: finish(answer='42')"], {}, {}),
    StopReason.MAX_STEPS: ("react", ["Action: add(1)"], {"max_steps": 2}, {}),
    StopReason.TOKEN_BUDGET: ("react", ["Action: add(1)"], {}, {"max_tokens_total": 6}),
    StopReason.PARSE_ERRORS: ("react", ["Action: add("], {}, {}),
    StopReason.TIMEOUT: ("tool", [calls(("sleeps", {}))], {}, {"agent_timeout": 0.2}),
    StopReason.LLM_ERROR: ("react", ["Action: add(1)", ValueError("no model")], {}, {}),
}


@pytest.mark.parametrize("reason", STOPS)
@pytest.mark.row("ARL 19")
async def test_each_end_has_its_stop_reason(reason):
    @tool
    async def sleeps() -> str:
        """Takes long."""
        await asyncio.sleep(3600)

    agent_type, replies, config, request = STOPS[reason]
    llm = Script(*replies, tokens=reason is StopReason.TOKEN_BUDGET)
    trajectory = await rollout_of(llm, agent_type, (*TOOLS, sleeps), **config).run("Q", **request)
    assert trajectory.stop_reason is reason
    assert trajectory.is_completed is (reason in (StopReason.FINAL_ANSWER, StopReason.FINISH_TOOL))
    if reason is StopReason.MAX_STEPS:
        assert len(llm.asked) == 2
    if reason is StopReason.TOKEN_BUDGET:
        assert len(llm.asked) == 2
    if reason is StopReason.LLM_ERROR:
        assert "no model" in trajectory.error
        assert "no model" not in json.dumps(trajectory.messages)
        assert trajectory.get_final_response() != trajectory.error


@pytest.mark.row("ARL 19")
async def test_a_cancelled_rollout_says_so_and_its_model_is_no_longer_asked():
    llm = Script("Action: add(1)", seconds=3600)
    stream = rollout_of(llm).stream("Q", "r")
    async with stream:
        await until(lambda: llm.running == 1)
        stream.cancel()
        assert [step.step_type async for step in stream] == [StepType.OBSERVATION]
    assert (stream.trajectory.stop_reason, llm.running) == (StopReason.CANCELLED, 0)


@pytest.mark.row("ARL 6")
async def test_a_caller_that_is_cancelled_stops_the_model():
    llm = Script(ANSWER, seconds=3600)
    running = asyncio.ensure_future(rollout_of(llm).run("Q"))
    await until(lambda: llm.running == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert llm.running == 0


@pytest.mark.row("ARL 6")
async def test_steps_are_streamed_in_order_and_are_those_of_the_trajectory():
    llm = Script("Thought: t\nAction: add(1, 2)", ANSWER)
    async with rollout_of(llm).stream("Q", "r") as stream:
        streamed = [step async for step in stream]
    assert streamed == stream.trajectory.steps
    assert [step.index for step in streamed] == list(range(5))
    unary = await rollout_of(llm).run("Q", "r")

    def timeless(trajectory):
        return [{**step.to_dict(), "timestamp": 0, "duration": 0} for step in trajectory.steps]

    assert timeless(unary) == timeless(stream.trajectory)


ERRORS = {
    "Action: nope(1)": ("unknown_tool", "there is no tool 'nope'; the tools are: add, fails, hangs, finish"),
    "Action: add(a='x')": ("bad_arguments", "a: Input should be a valid integer"),
    "Action: add(a=1, c=2)": ("bad_arguments", "c: is not a parameter"),
    "Action: fails()": ("tool_error", "RuntimeError: no disk"),
    "Action: hangs()": ("timeout", "hangs took longer than 0.02 s"),
    "Action: add(": ("bad_arguments", "the call of add is not closed with a parenthesis"),
}


@pytest.mark.parametrize("reply", ERRORS)
@pytest.mark.row("ARL 20")
async def test_an_error_is_a_result_with_a_type_and_the_loop_goes_on(reply):
    trajectory = await rollout_of(Script(reply, ANSWER)).run("Q")
    kind, text = ERRORS[reply]
    result = trajectory.steps[2]
    assert (result.step_type, result.metadata["success"], result.metadata["error_type"]) == (
        "action_result",
        False,
        kind,
    )
    assert result.metadata["error"].startswith(text)
    assert trajectory.stop_reason is StopReason.FINAL_ANSWER
    assert text in trajectory.messages[3]["content"]


@pytest.mark.parametrize("agent_type", ["react", "tool"])
async def test_the_calls_of_a_reply_that_was_cut_do_not_run(agent_type):
    written = []

    @tool
    def write(text: str = "") -> str:
        """Writes."""
        written.append(text)
        return "written"

    call = calls(("write", {})) if agent_type == "tool" else {"role": "assistant", "content": "Action: write()"}
    answer = "42" if agent_type == "tool" else ANSWER
    llm = Script({"message": call, "finish_reason": "length"}, answer)
    trajectory = await rollout_of(llm, agent_type, [write]).run("Q")
    results = [step for step in trajectory.steps if step.step_type == "action_result"]
    assert (written, [step.metadata["error_type"] for step in results]) == ([], ["reply_cut"])
    assert trajectory.stop_reason is StopReason.FINAL_ANSWER


@pytest.mark.row("ARL 21")
async def test_a_reply_has_several_calls_with_a_limit_and_an_answer_beside_calls_is_none():
    running = most = 0

    @tool
    async def slow(n: int) -> int:
        """Returns n."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)  # so that the calls overlap
        running -= 1
        return n

    asked = calls(*[("slow", {"n": n}) for n in range(5)], text="Final thoughts")
    llm = Script(asked, "42")
    trajectory = await rollout_of(llm, "tool", [slow], agent_options={"max_parallel_calls": 2}).run("Q")
    assert most == 2
    assert kinds(trajectory) == ["observation", "thought", *["action"] * 5, *["action_result"] * 5, "final_answer"]
    assert [m["content"] for m in llm.asked[1] if m["role"] == "tool"] == ["0", "1", "2", "3", "4"]
    assert [t["function"]["name"] for t in llm.params[0]["tools"]] == ["slow"]


@pytest.mark.row("ARL 21")
async def test_an_answer_beside_an_action_is_left_out_because_the_model_has_not_seen_the_result():
    trajectory = await rollout_of(Script("Action: add(1, 2)\nFinal Answer: 4", "Final Answer: 3")).run("Q")
    assert kinds(trajectory) == ["observation", "action", "action_result", "final_answer"]
    assert trajectory.get_final_response() == "3"


@pytest.mark.row("ARL 21")
async def test_arguments_that_are_no_json_are_an_error_of_their_call():
    trajectory = await rollout_of(Script(calls(("add", "{"), ("add", {"a": 1})), "42"), "tool").run("Q")
    assert [step.metadata.get("success") for step in trajectory.steps if step.step_type is StepType.ACTION_RESULT] == [
        False,
        True,
    ]
    assert len(trajectory.get_malformed_calls()) == 1
    assert trajectory.messages[2]["content"].startswith("Error: bad_arguments: Invalid JSON arguments")


@pytest.mark.row("ARL 28")
async def test_the_rewards_of_steps_reach_the_trainer_and_the_trajectory():
    class Rewarding(ReActAgent):
        def calculate_step_reward(self, step, trajectory):
            return {StepType.ACTION_RESULT: 0.25, StepType.FINAL_ANSWER: 1.0}.get(step.step_type)

    agent = Rewarding()
    agent.set_tools(TOOLS)
    trajectory = await agent.run_trajectory("Q", Script("Action: add(1)", ANSWER))
    assert trajectory.final_reward == 1.25 == trajectory.get_total_reward()
    kept = Trajectory(
        request_id="r", steps=[TrajectoryStep(step_type="thought", content="", reward_score=1)], final_reward=5.0
    )
    agent.finalize_trajectory(kept)
    assert (kept.final_reward, kept.get_total_reward()) == (5.0, 1.0)


@pytest.mark.row("ARL 29")
async def test_tokens_are_counted_by_the_model_or_not_at_all():
    counted = await rollout_of(Script("Action: add(1)", ANSWER, tokens=True)).run("Q")
    assert counted.total_tokens == (2 + 3) + (6 + 3)
    assert (await rollout_of(Script(ANSWER)).run("Q")).total_tokens is None


@pytest.mark.row("ARL 29", "ARL 48")
async def test_tokens_masks_and_logprobs_are_those_of_the_outcome():
    trajectory = await rollout_of(Script("Action: add(1)", ANSWER, tokens=True)).run("Q")
    [segment] = trajectory.segments
    assert segment["ids"] == [1, 2, 11, 12, 13, 7, 21, 22, 23]
    assert segment["mask"] == [0, 0, 1, 1, 1, 0, 1, 1, 1]
    assert segment["logprobs"] == pytest.approx([0, 0, -0.1, -0.2, -0.3, 0, -0.1, -0.2, -0.3])
    sampled = [step for step in trajectory.steps if step.token_ids]
    assert [step.token_ids for step in sampled] == [[11, 12, 13], [21, 22, 23]]
    assert sampled[0].log_probs == pytest.approx([-0.1, -0.2, -0.3])
    without = await rollout_of(Script(ANSWER)).run("Q")
    assert (without.segments, without.metadata["not_trainable"]) == ([], "chat 1: the reply came without token ids")


@pytest.mark.row("ARL 37")
async def test_tools_without_types_and_sync_tools_run():
    class Search:
        async def execute(self, query, max_results: int = 5, **more):
            return {"query": query, "found": max_results, "more": more}

    class Upper:
        """Makes letters large."""

        def execute(self, text: str):
            return text.upper()

    llm = Script("Action: search(query='x', k=1)\nAction: upper('a')", ANSWER)
    trajectory = await rollout_of(llm, tools={"search": Search(), "upper": Upper()}).run("Q")
    results = [step.tool_result for step in trajectory.steps if step.step_type is StepType.ACTION_RESULT]
    assert results == [{"query": "x", "found": 5, "more": {"k": 1}}, "A"]
    assert "- upper: Makes letters large.\n    text (string, required)" in llm.asked[0][0]["content"]
    with pytest.raises(InvalidArgument, match=r"tools\.odd: 3 is not a function, and has no method execute"):
        ToolAgent().set_tools({"odd": 3})
    with pytest.raises(InvalidArgument, match=r"tools\[1\]: 3 is not a function"):
        ToolAgent().set_tools([add, 3])


@pytest.mark.parametrize(
    "tools", [{"tools": TOOLS}, {"tools": (), "tools_config": {"finish": {}}}], ids=["own", "ours"]
)
@pytest.mark.row("ARL 44")
async def test_a_finish_tool_ends_the_rollout_with_its_answer(tools):
    for agent_type, reply in (("react", "Action: finish(answer='42')"), ("tool", calls(("finish", {"answer": "42"})))):
        trajectory = await rollout_of(Script(reply), agent_type, **tools).run("Q")
        assert (trajectory.stop_reason, trajectory.get_final_response()) == (StopReason.FINISH_TOOL, "42")


@pytest.mark.row("ARL 44")
async def test_the_finish_tool_keeps_its_reasoning_and_its_status():
    said = {"answer": "none", "reasoning": "no time", "status": "failed"}
    trajectory = await rollout_of(Script(calls(("finish", said))), "tool", (), tools_config={"finish": {}}).run("Q")
    assert (trajectory.get_final_response(), trajectory.steps[2].tool_result) == ("none", said | {"completed": True})


@pytest.mark.parametrize(
    "prompt", ["Q", {"content": "Q"}, {"prompt": "Q"}, {"messages": [{"role": "user", "content": "Q"}]}]
)
async def test_a_prompt_has_several_forms(prompt):
    trajectory = await rollout_of(Script(ANSWER)).run(prompt)
    assert trajectory.steps[0].content == "Q"


async def test_a_wrong_prompt_and_a_wrong_request_are_refused_by_name():
    for prompt in (3, {}, [3], {"text": "Q"}):
        with pytest.raises(InvalidArgument, match="prompt: "):
            await rollout_of(Script(ANSWER)).run(prompt)
