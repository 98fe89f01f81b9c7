"""Two agents of the OpenAI Agents SDK: a guide that asks a geographer. Serve it from this folder:

osmosis-grpc serve -m agent:guide_agent

The SDK gets the rollout's client. Each conversation is a sample: `main` is the guide's, `sample-2` the geographer's.
"""

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

from osmosis_grpc.integrations.openai import rollout_agent

set_tracing_disabled(True)

PEOPLE = {"Oslo": 709_000, "Lisbon": 546_000, "Turin": 848_000}


@function_tool
def people(city: str) -> int:
    """Return how many people live in a city."""
    return PEOPLE[city]


@rollout_agent("guide")
async def guide_agent(task, client):
    model = OpenAIChatCompletionsModel(model="policy", openai_client=client)
    geographer = Agent(name="geographer", instructions="You know cities.", model=model, tools=[people])
    ask = geographer.as_tool(tool_name="ask_geographer", tool_description="Ask a geographer about cities.")
    guide = Agent(name="guide", instructions="You help travellers.", model=model, tools=[ask])
    result = await Runner.run(guide, task.messages, max_turns=task.max_turns)
    return float(str(task.label) in str(result.final_output))
