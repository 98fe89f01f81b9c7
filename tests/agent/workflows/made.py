"""Workflows and graders that the tests share."""

import json
import urllib.request

from osmosis_grpc.rollout import AgentWorkflow, Grader, get_rollout_context

QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


class Asks(AgentWorkflow):
    """Asks once, in the sample `main`."""

    async def run(self, ctx):
        await get_rollout_context().chat(ctx.prompt)


class AsksTwice(AgentWorkflow):
    """Asks once in each of the samples `first` and `second`."""

    async def run(self, ctx):
        for sample in ("first", "second"):
            await get_rollout_context().chat(ctx.prompt, sample=sample)


class Ones(Grader):
    """Gives every sample the reward 1."""

    async def grade(self, ctx):
        for name in ctx.samples:
            ctx.set_sample_reward(name, 1)


def post(url, key, sample):
    """Asks a model at the base URL of a rollout, and returns the text of the reply."""
    body = json.dumps({"model": "osmosis-rollout", "messages": QUESTION}).encode()
    headers = {"authorization": f"Bearer {key}", "x-sample-id": sample, "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", body, headers)) as response:
        return json.load(response)["choices"][0]["message"]["content"]
