"""An agent with two samples and branches, and what the tests of forks compare."""

import numpy as np

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import ChatRef, Fork

USER = {"role": "user", "content": "begin"}
CHATS = [("main", 1), ("main", 2), ("helper", 1), ("main", 3), ("helper", 2), ("main", 4)]
"""The chats of the agent, in the order in which it asks them."""
PARENTS = {("main", 2): 1, ("main", 3): 1, ("main", 4): 2, ("helper", 2): 1}
"""The chats that continue another chat of their sample. Chat main 3 is a branch."""


def user(text):
    return {"role": "user", "content": text}


class Brancher(RolloutAgentLoop):
    """Asks the chats of CHATS. Chat 3 of main goes back to chat 1, and chat 4 to chat 2."""

    name = "brancher"
    replayable = True

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        first = [*ctx.request.messages, (await ctx.chat(list(ctx.request.messages))).message]
        second = [*first, user("go on")]
        second.append((await ctx.chat(second)).message)
        ctx.add_sample("helper", parent=ChatRef("main", 2))
        helper = [user("help")]
        helper.append((await ctx.chat(helper, sample="helper")).message)
        await ctx.chat([*first, user("another way")])
        await ctx.chat([*helper, user("more help")], sample="helper")
        second.append(user("the end"))
        second.append((await ctx.chat(second)).message)
        return ctx.complete(second, reward=1.0)


async def policy(request):
    """Say which chat of which rollout is answered."""
    return answer(request, f"{request.rollout_id} {request.sample} {request.chat_number}")


def fork_at(name, of="r1", attempt=1):
    """A fork from a chat of CHATS."""
    sample, number = name
    return Fork(of, number, sample, attempt)


def trained(outcome):
    """How often each sampled token has mask 1, by sample and chat: (number of tokens, logprobs)."""
    found = {}
    for name, sample in outcome.samples.items():
        for segment in sample.segments:
            assert len(segment.logprobs) == segment.sampled == int(segment.mask().sum())
            assert len(segment.ids) == sum(segment.mask_runs)
            for number in segment.chats:
                assert (name, number) not in found, "a chat is in one segment"
                found[name, number] = segment
    return found


def sampled(outcome):
    """The number of tokens with mask 1."""
    return sum(segment.sampled for sample in outcome.samples.values() for segment in sample.segments)


def tokens_of(name, original):
    """All tokens of a chat of the original, prompt and reply, from the chats that its trainer kept."""
    sample, number = name
    chat = next(chat for chat in original.samples[sample].chats if chat.chat_number == number)
    return np.concatenate([chat.prompt_ids, chat.tokens.ids])
