"""Google ADK: an agent through LiteLLM, and one that speaks generateContent."""

import json

from case import PROMPT, Answer, case, multiply, run
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types


async def texts(streaming=StreamingMode.NONE, **options):
    agent = LlmAgent(name="clerk", model=LiteLlm("openai/policy"), instruction="Be short.", **options)
    runner = InMemoryRunner(agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="user")
    asked = types.Content(role="user", parts=[types.Part(text=PROMPT)])
    events = runner.run_async(
        user_id="user", session_id=session.id, new_message=asked, run_config=RunConfig(streaming_mode=streaming)
    )
    found = []
    async for event in events:
        if event.error_code:
            raise RuntimeError(event.error_message)
        found += [(event.partial, part.text) for part in (event.content.parts if event.content else ()) if part.text]
    return found


@case
async def tools():
    return (await texts(tools=[multiply]))[-1][1]


@case
async def stream():
    return "".join(text for partial, text in await texts(StreamingMode.SSE, tools=[multiply]) if partial)


@case
async def structured():
    return json.loads((await texts(output_schema=Answer))[-1][1])


run()
