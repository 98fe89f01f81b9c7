"""A rollout server made of the Osmosis SDK's own code: sdk_server.py VERSION PORT.

Its workflow asks for one reply, and for another one with `twice` in the metadata. The reward says whether the label is
there.
"""

import asyncio
import json
import sys
import urllib.request

import uvicorn
from osmosis_ai.rollout import AgentWorkflow, Grader, LocalBackend, get_rollout_context
from osmosis_ai.rollout.context import SampleSource
from osmosis_ai.rollout.server.app import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, ConcurrencyConfig, RolloutSample

VERSION = sys.argv[1]
EARLY = VERSION.startswith("0.2.")
NAME = "solver"


def ask(rollout, messages):
    """Ask the policy as LiteLLM does: streaming, with the headers of the version."""
    body = {"model": "osmosis-rollout", "messages": messages, "stream": True}
    headers = {"Authorization": f"Bearer {rollout.api_key}", "Content-Type": "application/json"}
    if EARLY:
        headers |= {"x-sample-id": NAME, "x-rollout-id": rollout.rollout_id}
    url = f"{rollout.chat_completions_url}/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    text = ""
    with urllib.request.urlopen(request) as stream:
        for line in stream:
            data = line.decode().removeprefix("data: ").strip()
            if line.startswith(b"data: ") and data != "[DONE]":
                for choice in json.loads(data)["choices"]:
                    text += choice["delta"].get("content") or ""
    return {"role": "assistant", "content": text}


class Source(SampleSource):
    def __init__(self, messages):
        self.messages = messages

    async def get_sample(self, *name):
        return RolloutSample(messages=self.messages, **({"id": NAME} if EARLY else {}))


class Asks(AgentWorkflow):
    async def run(self, ctx):
        rollout = get_rollout_context()
        messages = list(ctx.prompt)
        messages.append(await asyncio.to_thread(ask, rollout, messages))
        metadata = getattr(ctx, "metadata", None) or {}
        if metadata.get("raise"):
            raise ValueError("the agent broke")
        if metadata.get("twice"):
            messages.append({"role": "user", "content": "Are you sure?"})
            messages.append(await asyncio.to_thread(ask, rollout, messages))
        if EARLY:
            rollout.register_sample_source(NAME, Source(messages))
        else:
            rollout.set_sample_source(Source(messages))


class HasLabel(Grader):
    async def grade(self, ctx):
        samples = ctx.samples if EARLY else {NAME: ctx.sample}
        for name, sample in samples.items():
            sample.metrics["messages"] = len(sample.messages)
            reward = float(ctx.label in str(sample.messages[-1]["content"]))
            if EARLY:
                ctx.set_sample_reward(name, reward)
            else:
                ctx.set_reward(reward)


config = AgentWorkflowConfig(name="asks", concurrency=ConcurrencyConfig(max_concurrent=32))
app = create_rollout_server(backend=LocalBackend(workflow=Asks, workflow_config=config, grader=HasLabel))
uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
