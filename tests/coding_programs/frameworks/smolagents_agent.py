"""smolagents: its agents of tool calls and of code."""

from case import PROMPT, case, multiply, run
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

MODEL = OpenAIModel("policy")


def agent():
    return ToolCallingAgent([tool(multiply)], MODEL, max_steps=5)


@case
def tools():
    return agent().run(PROMPT)


@case
def stream():
    streamed = ToolCallingAgent([tool(multiply)], MODEL, max_steps=5, stream_outputs=True)
    *_, last = streamed.run(PROMPT, stream=True)
    return last.output


@case
def code():
    return str(CodeAgent([tool(multiply)], MODEL, max_steps=5).run(PROMPT))


@case
def structured():
    agent = CodeAgent([tool(multiply)], MODEL, max_steps=5, use_structured_outputs_internally=True)
    return {"value": agent.run(PROMPT)}


run()
