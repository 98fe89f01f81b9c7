"""What the tests of an attachment share: loops of one function, and what was asked and told."""

from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop
from tests.server.raw_trainer import RawTrainer, subscribe


def plays(run: Any, tools: Any = (), name: str = "talk") -> RolloutAgentLoop:
    """An agent loop whose run is a function of its context."""
    body = {"name": name, "run": lambda self, ctx: run(ctx), "get_tools": lambda self, request: list(tools)}
    return type("Plays", (RolloutAgentLoop,), body)()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def key(chat: Any) -> tuple[str, int, str, int]:
    return chat.rollout_id, chat.attempt, chat.sample, chat.number


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
    return [answer.event.number for answer in answers]
