"""The messages that an agent returns become the conversation that they continue, and no other."""

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.testing import run_rollout

GO = {"role": "user", "content": "Go."}
END = {"role": "user", "content": "That is all."}


class Debate(RolloutAgentLoop):
    """Has two conversations of its own names, and returns one of them."""

    name = "debate"

    def __init__(self, returned):
        self.returned = returned

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        conversations = {}
        for sample in ("pro", "contra"):
            reply = await ctx.chat([GO], sample=sample)
            conversations[sample] = [GO, reply.message, END]
        return ctx.complete(conversations[self.returned], reward=1.0)


def policy(request):
    return answer(request, {"role": "assistant", "content": f"I am {request.sample}."})


@pytest.mark.parametrize("returned", ["pro", "contra"])
async def test_the_final_messages_belong_to_the_sample_whose_conversation_they_continue(returned):
    outcome = await run_rollout(Debate(returned), policy)
    for name, sample in outcome.samples.items():
        texts = [message["content"] for message in sample.messages]
        assert texts == ["Go.", f"I am {name}.", *(["That is all."] if name == returned else [])]
