"""Scripted peers: an agent server and a trainer. Each can dial the other side, or listen for it."""

import itertools
from typing import Any

import grpc

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import (
    attach_pb2,
    chat_pb2,
    control_pb2,
    outcome_pb2,
    rollout_pb2,
    services_pb2,
)
from osmosis_grpc.testing.raw import server_frames, trainer_frames
from osmosis_grpc.testing.raw.connections import ACCEPT, ATTACH, RawDialler, RawListener
from osmosis_grpc.testing.raw.stream import RawStream

_NUMBERS = itertools.count(1)


class RawAgentServer(RawDialler):
    """An agent server with a journal id of its own. It opens streams to one trainer."""

    def __init__(self, address: str) -> None:
        super().__init__(address, ACCEPT, services_pb2.AcceptRequest, services_pb2.AcceptResponse)
        self.journal_id = f"journal-{next(_NUMBERS)}"

    async def attach(self, **fields: Any) -> attach_pb2.TrainerHello:
        """Open a stream, send a hello, and return the trainer's hello. `fields` are fields of ServerHello."""
        stream = self.open()
        await stream.send(self.hello(**fields))
        answer: attach_pb2.TrainerHello = await stream.next("hello")
        return answer

    def hello(self, **fields: Any) -> attach_pb2.ServerFrame:
        """Return this agent server's hello."""
        return server_frames.hello(**({"journal_id": self.journal_id} | fields))

    async def accept(self) -> rollout_pb2.InitRequest:
        """Return the next Init and accept its rollout."""
        request: rollout_pb2.InitRequest = await self.stream.next("init")
        await self.send(server_frames.accepted(request))
        return request

    async def ask(self, request: rollout_pb2.InitRequest, number: int = 1, **fields: Any) -> attach_pb2.ChatReply:
        """Send a chat and return the answer."""
        await self.send(server_frames.chat(request, number, **fields))
        answer: attach_pb2.ChatReply = await self.stream.next("chat_reply")
        return answer

    async def complete(self, request: rollout_pb2.InitRequest, **fields: Any) -> attach_pb2.CompleteReply:
        """Report the end of a rollout and return the answer."""
        await self.send(server_frames.complete(request, **fields))
        answer: attach_pb2.CompleteReply = await self.stream.next("complete_reply")
        return answer


def listen_as_agent_server() -> RawListener:
    """Return a listener for trainers that dial an agent server."""
    return RawListener(ATTACH, services_pb2.AttachRequest, services_pb2.AttachResponse)


class RawTrainer(RawDialler):
    """A trainer with an attachment id of its own. It opens streams to one agent server.

    `channel` is a channel to share. Without it, the trainer has a connection of its own.
    """

    def __init__(self, address: str, *, channel: grpc.aio.Channel | None = None) -> None:
        super().__init__(address, ATTACH, services_pb2.AttachRequest, services_pb2.AttachResponse, channel)
        self.attachment_id = f"raw-trainer-number-{next(_NUMBERS)}"
        self.tokens: dict[tuple[str, str, int], list[int]] = {}
        """The prompt and the reply of each answered chat, by rollout, sample and chat number."""
        self._barriers = itertools.count(1)

    async def attach(self, **fields: Any) -> RawStream:
        """Open a stream, send a hello, and wait for the server's hello. `fields` are fields of TrainerHello."""
        stream = self.open()
        await stream.send(self.hello(**fields))
        await stream.next("hello")
        return stream

    def hello(self, **fields: Any) -> attach_pb2.TrainerFrame:
        """Return this trainer's hello."""
        return trainer_frames.hello(**({"attachment_id": self.attachment_id} | fields))

    async def start(self, rollout_id: str, **fields: Any) -> rollout_pb2.InitResponse:
        """Start a rollout and return the answer. Raises AssertionError if the rollout is refused."""
        await self.send(trainer_frames.init(rollout_id, **fields))
        answer: attach_pb2.InitReply = await self.stream.next("init_reply")
        assert (answer.rollout_id, answer.WhichOneof("result")) == (rollout_id, "response"), answer
        return answer.response

    async def chat(self) -> chat_pb2.ChatRequest:
        """Return the next chat."""
        chat: chat_pb2.ChatRequest = await self.stream.next("chat")
        return chat

    async def answer(self, chat: chat_pb2.ChatRequest, text: str = "fine") -> None:
        """Answer a chat. The new part of the prompt is one token, and so is the reply."""
        delta = chat.WhichOneof("history") == "delta"
        parent_chat = chat.delta.parent_chat if delta else chat.chat_number - 1
        known = self.tokens.get((chat.rollout_id, chat.sample, parent_chat), [])
        prompt = [*known, chat.chat_number]
        self.tokens[chat.rollout_id, chat.sample, chat.chat_number] = [*prompt, 1000 + chat.chat_number]
        response = trainer_frames.reply(text)
        response.tokens.ids.append(1000 + chat.chat_number)
        response.tokens.logprobs.append(-0.5)
        response.prompt_prefix = len(known) if delta else 0
        response.prompt.ids.extend(prompt[response.prompt_prefix :])
        await self.send(trainer_frames.chat_reply(chat, response=response))

    async def outcome(self) -> outcome_pb2.RolloutOutcome:
        """Return the next outcome without answering it."""
        complete: outcome_pb2.CompleteRequest = await self.stream.next("complete")
        return complete.outcome

    async def settled(self) -> outcome_pb2.RolloutOutcome:
        """Answer the next outcome with RECORDED, and return it."""
        outcome = await self.outcome()
        await self.send(trainer_frames.recorded(outcome))
        return outcome

    async def finish(self) -> outcome_pb2.RolloutOutcome:
        """Answer every chat until the next outcome comes. Answer the outcome with RECORDED, and return it."""
        while await self._chats_come():
            await self.answer(await self.chat())
        return await self.settled()

    async def barrier(self) -> None:
        """Wait until the server has handled all frames that were sent so far, and its answers have come."""
        name = f"barrier {next(self._barriers)}"
        request = control_pb2.CancelRequest(group_id="nobody is in this group")
        await self.send(attach_pb2.TrainerFrame(cancel=attach_pb2.CancelFrame(id=name, request=request)))
        await self.stream.until(lambda: name in {answer.id for answer in self.stream.all("cancel_reply")})

    async def _chats_come(self) -> bool:
        fresh = self.stream.fresh
        await self.stream.until(lambda: fresh("chat") or fresh("complete") or self.stream.over is not None)
        return fresh("chat") > 0


def listen_as_trainer() -> RawListener:
    """Return a listener for agent servers that dial a trainer."""
    return RawListener(ACCEPT, services_pb2.AcceptRequest, services_pb2.AcceptResponse)
