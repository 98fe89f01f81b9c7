"""OpenInference: OpenTelemetry spans of an openai client in the agent's process.

A span holds the reply as the client got it, in JSON, so the ids and logprobs are there if the engine is asked for
them. `merged` joins the spans of a rollout; there is no trainer behind it.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openinference.instrumentation import using_session
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from comparison import agents, cases
from comparison.adapter import Delivered, Place, Rollout, Row, merged

ASKED = {"logprobs": True, "extra_body": {"return_token_ids": True}}


@asynccontextmanager
async def open_system(place: Place) -> AsyncIterator[Rollout]:
    """Instrument openai, and open a client of the engine."""
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    async with AsyncOpenAI(base_url=place.engine, api_key="none", max_retries=0) as client:
        ask = agents.openai_chat(client, "mock", None)

        async def chat(messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
            return await ask(messages, **options, **ASKED)

        async def rollout(case: str, key: str, limit: float) -> Delivered:
            agent, ended, said = None, False, ""
            with using_session(key):
                try:
                    agent, ended = await asyncio.wait_for(cases.run(case, key, chat), limit), True
                except Exception as error:
                    # wait_for raises a TimeoutError of its own; the agent is on the error that it came from
                    agent = getattr(error, "agent", None) or getattr(error.__cause__, "agent", None)
                    said = f"agent: {type(error).__name__}: {error}"[:300]
            with Path(place.agents_log).open("a") as log:
                agents.record(log, agent, ended)
            own = [span for span in spans.get_finished_spans() if span.attributes.get("session.id") == key]
            return Delivered(_rows(own), said)

        yield rollout


def _rows(spans: list[Any]) -> list[Row]:
    steps = []
    for span in sorted(spans, key=lambda span: span.start_time):
        answer = json.loads(span.attributes.get("output.value") or "{}")
        for choice in answer.get("choices", ()):
            if choice.get("token_ids") and answer.get("prompt_token_ids"):
                logprobs = [each["logprob"] for each in choice["logprobs"]["content"]]
                steps.append({"prompt": answer["prompt_token_ids"], "ids": choice["token_ids"], "logprobs": logprobs})
    return merged(steps)
