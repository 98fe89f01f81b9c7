"""Agno, over chat completions and over Responses."""

from agno.agent import Agent
from agno.models.openai import OpenAIChat, OpenAIResponses
from case import PROMPT, Answer, case, multiply, run


def agent(model=OpenAIChat, **options):
    return Agent(model=model(id="policy"), tools=[multiply], telemetry=False, **options)


def checked(reply):
    if str(getattr(reply.status, "value", reply.status)).lower() == "error":
        raise RuntimeError(reply.content)
    return reply.content


@case
def tools():
    return checked(agent().run(PROMPT))


@case
def responses_tools():
    return checked(agent(OpenAIResponses).run(PROMPT))


@case
def stream():
    return "".join(event.content or "" for event in agent().run(PROMPT, stream=True) if event.event == "RunContent")


@case
def structured():
    return checked(agent(output_schema=Answer).run(PROMPT))


run()
