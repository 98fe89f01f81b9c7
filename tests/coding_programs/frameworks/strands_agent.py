"""Strands Agents with its own OpenAI model."""

from case import API_KEY, BASE_URL, PROMPT, Answer, case, multiply, run
from strands import Agent, tool
from strands.models.openai import OpenAIModel


def agent():
    model = OpenAIModel(client_args={"base_url": BASE_URL, "api_key": API_KEY}, model_id="policy")
    return Agent(model=model, tools=[tool(multiply)], callback_handler=None)


@case
def tools():
    return str(agent()(PROMPT)).strip()


@case
async def stream():
    return "".join([event["data"] async for event in agent().stream_async(PROMPT) if "data" in event])


@case
def structured():
    return agent()(PROMPT, structured_output_model=Answer).structured_output


run()
