"""A scripted agent server: it dials a trainer, or trainers dial it."""

import itertools
from typing import Any

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, rollout_pb2, services_pb2
from osmosis_grpc.testing.raw.connections import ACCEPT, ATTACH, RawDialler, RawListener
from osmosis_grpc.testing.raw.server_frames import accepted, chat, complete, hello

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
        return hello(**({"journal_id": self.journal_id} | fields))

    async def accept(self) -> rollout_pb2.InitRequest:
        """Return the next Init and accept its rollout."""
        request: rollout_pb2.InitRequest = await self.stream.next("init")
        await self.send(accepted(request))
        return request

    async def ask(self, request: rollout_pb2.InitRequest, number: int = 1, **fields: Any) -> attach_pb2.ChatReply:
        """Send a chat and return the answer."""
        await self.send(chat(request, number, **fields))
        answer: attach_pb2.ChatReply = await self.stream.next("chat_reply")
        return answer

    async def complete(self, request: rollout_pb2.InitRequest, **fields: Any) -> attach_pb2.CompleteReply:
        """Report the end of a rollout and return the answer."""
        await self.send(complete(request, **fields))
        answer: attach_pb2.CompleteReply = await self.stream.next("complete_reply")
        return answer


def listen_as_agent_server() -> RawListener:
    """Return a listener for trainers that dial an agent server."""
    return RawListener(ATTACH, services_pb2.AttachRequest, services_pb2.AttachResponse)
