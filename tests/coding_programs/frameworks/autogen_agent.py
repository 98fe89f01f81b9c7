"""AutoGen: an assistant agent."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from case import PROMPT, Answer, case, multiply, run

ABILITIES = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": True,
    "family": "unknown",
    "multiple_system_messages": False,
}


def agent(**options):
    client = OpenAIChatCompletionClient(model="policy", model_info=ABILITIES)
    tool = FunctionTool(multiply, "Multiply two numbers.", strict=True)
    return AssistantAgent("clerk", client, tools=[tool], max_tool_iterations=5, **options)


@case
async def tools():
    return (await agent().run(task=PROMPT)).messages[-1].content


@case
async def stream():
    events = agent(model_client_stream=True).run_stream(task=PROMPT)
    return "".join([event.content async for event in events if isinstance(event, ModelClientStreamingChunkEvent)])


@case
async def structured():
    return (await agent(output_content_type=Answer).run(task=PROMPT)).messages[-1].content


run()
