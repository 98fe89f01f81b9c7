"""A debate of two policies, with a third one as its judge: the agent, its server and a trainer in one program.

python examples/debate.py
python examples/debate.py 127.0.0.1:50051   uses a server: osmosis-grpc serve -m debate:Debate --workers 2

Each side is a sample of its own, with its own policy and its own reward. The judge's sample is not to be trained on.
The policies toss coins; replace them with your models.
"""

import asyncio
import contextlib
import random
import sys
import uuid

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutRequest, RolloutResult
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import ChatRequest, ChatResponse, Policy, TokenBlock, Trainer, advantages, pad


class Debate(RolloutAgentLoop):
    name = "debate"

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        speech = [*ctx.request.messages, {"role": "user", "content": "Argue for it."}]
        ctx.add_sample("for", policy="proposer")
        claim = await ctx.chat(speech, sample="for")
        ctx.add_sample("against", policy="critic", parent=("for", claim.chat_number))
        answer = await ctx.chat([claim.message | {"role": "user"}], sample="against")
        ctx.add_sample("judge", policy="judge", train=False)
        heard = f"For: {claim.content}. Against: {answer.content}. Who is right?"
        verdict = await ctx.chat([{"role": "user", "content": heard}], sample="judge")
        won = 1.0 if "for" in str(verdict.content) else -1.0
        ctx.set_reward(won, sample="for")
        ctx.set_reward(-won, sample="against")
        ctx.set_reward(float(len(str(claim.content)) < 20), sample="for", name="short")
        return ctx.complete([*speech, claim.message])


def coin(*words: str) -> Policy:
    """Returns a policy that says one of these words. Its token is the index of the word."""

    def policy(request: ChatRequest) -> ChatResponse:
        token = random.randrange(len(words))
        return ChatResponse(
            message={"role": "assistant", "content": words[token]},
            prompt_ids=TokenBlock.of([7, 8, 9]).ids,
            tokens=TokenBlock.of([token], [-0.693]),
        )

    return policy


async def main(target: str) -> None:
    policies = {"proposer": coin("yes", "of course"), "critic": coin("no", "never"), "judge": coin("for", "against")}
    motion = [{"role": "user", "content": "Tests are worth their time."}]
    request = RolloutRequest(rollout_id=uuid.uuid4().hex, messages=motion)
    own = AgentServer([Debate()], port=0)
    async with contextlib.nullcontext() if target else own, Trainer([target or own.address], policies) as trainer:
        async for group in trainer.groups([request], group_size=4):
            batch = pad(group, advantages=advantages(group))
            assert batch.advantages is not None  # pad() has got advantages
            for name in ("proposer", "critic"):
                rows = [index for index, row in enumerate(batch.rows) if row.policy == name]
                print(name, "rewards", batch.rewards[rows], "advantages", batch.advantages[rows].round(2))


if __name__ == "__main__":
    asyncio.run(main("".join(sys.argv[1:2])))
