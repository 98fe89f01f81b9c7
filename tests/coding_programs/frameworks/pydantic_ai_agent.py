"""Pydantic AI, over chat completions, Responses and Messages."""

from case import PROMPT, Answer, case, multiply, run
from pydantic_ai import Agent, NativeOutput


def agent(model="openai-chat:policy", **options):
    return Agent(model, tools=[multiply], instructions="Be short.", **options)


@case
def tools():
    return agent().run_sync(PROMPT).output


@case
async def stream():
    async with agent().run_stream(PROMPT) as got:
        return "".join([text async for text in got.stream_text(delta=True, debounce_by=None)])


@case
def structured():
    return agent(output_type=Answer).run_sync(PROMPT).output


@case
def structured_json():
    return agent(output_type=NativeOutput(Answer)).run_sync(PROMPT).output


@case
def responses_tools():
    return agent("openai-responses:policy").run_sync(PROMPT).output


@case
def messages_of_anthropic():
    return agent("anthropic:policy").run_sync(PROMPT).output


run()
