"""Agents that ask again, and the chats whose replies they drop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer

GO, MORE, OTHER = ({"role": "user", "content": text} for text in ("Go.", "More.", "Something else."))
Ask = Callable[..., Awaitable[Any]]


async def retried(ask: Ask) -> Any:
    """The second reply is dropped, and the agent goes on with the third."""
    history = [GO, await ask([GO]), MORE]
    await ask(history)
    history += [await ask(history), MORE]
    return [*history, await ask(history)]


async def retried_in_vain(ask: Ask) -> Any:
    """The third reply is dropped, and the agent goes on with the second."""
    history = [GO, await ask([GO]), MORE]
    kept = await ask(history)
    await ask(history)
    history += [kept, MORE]
    return [*history, await ask(history)]


async def best_of_three(ask: Ask) -> Any:
    """The agent ends with the second of three replies."""
    replies = [await ask([GO]) for _ in range(3)]
    return [GO, replies[1]]


async def left_branch(ask: Ask) -> Any:
    """A dropped reply, and the replies that continue it."""
    left = [GO, await ask([GO]), MORE]
    left += [await ask(left), MORE]
    await ask(left)
    return [GO, await ask([GO])]


async def without_final_messages(ask: Ask) -> Any:
    await ask([GO])
    await ask([GO])


async def equal_replies(ask: Ask) -> Any:
    """The policy says the same twice, and the agent goes on."""
    await ask([GO], say="same")
    history = [GO, await ask([GO], say="same"), MORE]
    return [*history, await ask(history)]


async def at_the_same_time(ask: Ask) -> Any:
    """Equal questions at the same time, and nothing says which reply the agent takes."""
    await asyncio.gather(*(ask([GO]) for _ in range(2)))


async def edited(ask: Ask) -> Any:
    await ask([GO])
    reply = await ask([GO])
    history = [GO, {**reply, "content": "Edited."}, MORE]
    return [*history, await ask(history)]


async def compacted(ask: Ask) -> Any:
    await ask([GO, await ask([GO]), MORE])
    return [OTHER, await ask([OTHER])]


async def parallel(ask: Ask) -> Any:
    history = [GO, await ask([GO])]
    reply, _ = await asyncio.gather(ask([*history, MORE]), ask([*history, OTHER]))
    history += [MORE, reply, OTHER]
    return [*history, await ask(history)]


async def other_tools(ask: Ask) -> Any:
    """The same history with another form of the reply: both replies may be in use."""
    await ask([GO], response_format={"type": "json_object"})
    return [GO, await ask([GO])]


async def unrelated_end(ask: Ask) -> Any:
    await ask([GO])
    await ask([GO])
    return [OTHER]


CASES: dict[Any, tuple[list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    retried: ([(1, 3, 4)], [(2,)]),
    retried_in_vain: ([(1, 2, 4)], [(3,)]),
    best_of_three: ([(2,)], [(1,), (3,)]),
    left_branch: ([(4,)], [(1, 2, 3)]),
    without_final_messages: ([(2,)], [(1,)]),
    equal_replies: ([(2, 3)], [(1,)]),
    at_the_same_time: ([(1,), (2,)], []),
    edited: ([(1,), (2,), (3,)], []),
    compacted: ([(1, 2), (3,)], []),
    parallel: ([(1, 2, 4), (3,)], []),
    other_tools: ([(1,), (2,)], []),
    unrelated_end: ([(1,), (2,)], []),
}
"""The chats of each segment that is kept, and of each that is dropped."""


class Drops(RolloutAgentLoop):
    """Does what the metadata name."""

    name = "drops"

    async def run(self, ctx):
        agent = next(case for case in CASES if case.__name__ == ctx.request.metadata["case"])

        async def ask(history, **params):
            return (await ctx.chat(history, **params)).message

        return ctx.complete(await agent(ask), reward=1.0)


class Judges(RolloutAgentLoop):
    """Asks twice, and then a judge whose replies are not to be trained on."""

    name = "judges"

    async def run(self, ctx):
        history = list(ctx.request.messages)
        await ctx.chat(history)
        history.append((await ctx.chat(history)).message)
        ctx.add_sample("judge", train=False)
        await ctx.chat([*history, {"role": "user", "content": "What is wrong?"}], sample="judge")
        return ctx.complete(history, reward=1.0)


judges = Judges()


def different(request):
    """Returns a reply of its own for each chat, or the text that the chat asks for."""
    return answer(request, request.params.get("say", f"reply {request.chat_number}"), tokens=3)


def marked(sample) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Returns the chats of the segments that are kept, and of those that are dropped."""
    return (
        [segment.chats for segment in sample.segments if not segment.dropped],
        [segment.chats for segment in sample.segments if segment.dropped],
    )
