"""An agent that shows pictures to the model: first one with two squares, and then the left square alone.

Serve it from this folder:

    osmosis-grpc serve -m agent:agent_loop

The metadata of a request has the colours of the squares and a seed: {"colours": ["red", "blue"], "seed": 7}. Half of
the reward is for naming both colours, and half for naming the colour of the single square.
"""

from picture import COLOURS, part, picture

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult


def named(text: object) -> list[str]:
    """Return the colours that a text names, in their order."""
    words = str(text).lower().replace(",", " ").replace(".", " ").split()
    return [word for word in words if word in COLOURS]


class ImageAgent(RolloutAgentLoop):
    """Asks about two pictures in one conversation."""

    name = "image"

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        colours, seed = ctx.request.metadata["colours"], ctx.request.metadata["seed"]
        params = ctx.request.completion_params
        messages = [*ctx.request.messages, _shown("Name the colours, from left to right.", picture(colours, seed))]
        first = await ctx.chat(messages, **params)
        messages += [first.message, _shown("And this one?", picture(colours[:1], seed + 1))]
        second = await ctx.chat(messages, **params)
        messages.append(second.message)
        right = (named(first.message["content"]) == colours, named(second.message["content"]) == colours[:1])
        return ctx.complete(messages, reward=sum(right) / 2)


def _shown(question: str, png: bytes) -> dict[str, object]:
    return {"role": "user", "content": [{"type": "text", "text": question}, part(png)]}


agent_loop = ImageAgent()
