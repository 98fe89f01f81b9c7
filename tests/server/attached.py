"""What the tests of an attachment share: agent loops, bystanders, and what was asked and reported."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import outcome_pb2
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import subscribe


@asynccontextmanager
async def bystander(server: Any, rollout_id: str = "bystander"):
    """Another trainer with a rollout in progress, which goes on and completes afterwards, on the same stream."""
    async with RawTrainer(server.address) as other:
        stream = await other.attach()
        await other.start(rollout_id, turns=2)
        chat = await other.chat()
        yield other
        await other.answer(chat)
        outcome = await other.finish()
        assert (outcome.rollout_id, outcome.status) == (rollout_id, outcome_pb2.OUTCOME_STATUS_COMPLETED)
        assert stream is other.stream
        assert stream.over is None


class Talk(RolloutAgentLoop):
    """Makes as many chats as requested, each with a new message."""

    name: ClassVar[str] = "talk"

    def get_tools(self, request: Any) -> Any:
        return [{"type": "function", "function": {"name": "nod", "parameters": {"type": "object"}}}]

    async def run(self, ctx: Any) -> Any:
        messages = list(ctx.request.messages)
        for turn in range(ctx.request.metadata["turns"]):
            messages.append((await ctx.chat(messages)).message)
            messages.append({"role": "user", "content": f"so much for turn {turn + 1}"})
        return ctx.complete(messages, reward=1.0)


class Wide(RolloutAgentLoop):
    """Asks that often at once, each in a sample of its own."""

    name: ClassVar[str] = "wide"

    def get_tools(self, request: Any) -> Any:
        return []

    async def run(self, ctx: Any) -> Any:
        chats = (ctx.chat(ctx.request.messages, sample=f"s{n}") for n in range(ctx.request.metadata["turns"]))
        await asyncio.gather(*chats)
        return ctx.complete([])


def plays(run: Any, tools: Any = (), name: str = "talk") -> RolloutAgentLoop:
    """An agent loop whose run is an async function of its context."""

    async def run_it(self: Any, ctx: Any) -> Any:
        return await run(ctx)

    body = {"name": name, "run": run_it, "get_tools": lambda self, request: list(tools)}
    return type("Plays", (RolloutAgentLoop,), body)()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def key(chat: Any) -> tuple[str, int, str, int]:
    return chat.rollout_id, chat.attempt, chat.sample, chat.chat_number


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


async def asked(trainer: RawTrainer, rollout_id: str, count: int, name: str = "asked") -> None:
    """Wait until the agent has asked that many chats, whether or not they were sent."""
    await trainer.send(subscribe(name, rollout_id))

    def requested() -> int:
        events = trainer.stream.all("event")
        return sum(e.id == name and e.response.event.WhichOneof("kind") == "chat_requested" for e in events)

    await trainer.stream.until(lambda: requested() == count)
    await trainer.barrier()


def bystander_watcher(server: Any) -> Any:
    """Another trainer of the same owner, who looks on."""

    class Watcher(RawTrainer):
        async def __aenter__(self):
            await self.attach()
            return self

    return Watcher(server.address)


async def kinds_until(trainer: RawTrainer, name: str, last: str) -> list[Any]:
    """A subscription's answers up to an event of a kind."""

    def answers() -> list[Any]:
        return [e.response for e in trainer.stream.all("event") if e.id == name and e.response.HasField("event")]

    await trainer.stream.until(lambda: any(r.event.WhichOneof("kind") == last for r in answers()))
    return answers()


def numbers(answers: Any) -> list[int]:
    return [answer.event.event_number for answer in answers]
