"""An agent that asks for the letters of some words, one word a turn. Serve it from this folder:

osmosis-grpc serve -m speller:agent_loop
"""

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult


class Speller(RolloutAgentLoop):
    """Rewards the share of right letters. `label` has the words, separated by spaces."""

    name = "speller"
    replayable = True  # a server that was killed continues its rollouts with their recorded replies

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        words = (ctx.request.label or "").split()
        messages = [*ctx.request.messages, {"role": "user", "content": "0"}]
        right = 0
        for number, word in enumerate(words):
            result = await ctx.chat(messages)
            right += sum(a == b for a, b in zip(str(result.message["content"]), word, strict=False))
            messages += [result.message, {"role": "user", "content": str(number + 1)}]
        return ctx.complete(messages[:-1], reward=right / sum(map(len, words)))


agent_loop = Speller()
