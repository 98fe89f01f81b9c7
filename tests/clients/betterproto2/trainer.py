"""A callback trainer with the stubs of betterproto2: one rollout, and two refused calls whose details it decodes.

python trainer.py AGENT_SERVER DRAINING_SERVER      prints one JSON object
"""

import asyncio
import json
import socket
import sys
from typing import Any

from gen.osmosis.rollout import v1
from google.rpc import error_details_pb2
from grpclib import GRPCError
from grpclib.client import Channel
from grpclib.server import Server

QUESTION = v1.Message(role="user", text="What is 6 * 7?")


class Trainer(v1.TrainerServiceBase):
    """Answers each chat with the same reply and keeps the outcome."""

    def __init__(self) -> None:
        self.chats: list[v1.ChatRequest] = []
        self.outcome: asyncio.Future[v1.RolloutOutcome] = asyncio.get_running_loop().create_future()

    async def chat(self, message: v1.ChatRequest) -> v1.ChatResponse:
        self.chats.append(message)
        return v1.ChatResponse(
            message=v1.Message(role="assistant", text="[from betterproto2]"),
            finish_reason="stop",
            prompt=v1.TokenBlock(ids=[1, 2, 3]),
            tokens=v1.TokenBlock(ids=[4, 5], logprobs=[-0.5, -0.25]),
            versions=[v1.VersionSpan(version="bp2-1", tokens=2)],
        )

    async def complete(self, message: v1.CompleteRequest) -> v1.CompleteResponse:
        again = self.outcome.done()
        if not again:
            self.outcome.set_result(message.outcome)
        return v1.CompleteResponse(receipt=v1.Receipt.ALREADY_RECORDED if again else v1.Receipt.RECORDED)

    async def abandon_chat(self, message: v1.AbandonChatRequest) -> v1.AbandonChatResponse:
        return v1.AbandonChatResponse()


def connect(address: str) -> Channel:
    host, _, port = address.rpartition(":")
    return Channel(host, int(port))


async def refusal(channel: Channel, request: v1.InitRequest) -> dict[str, Any]:
    """Returns the reason and the details with which an Init is refused."""
    try:
        await v1.RolloutServiceStub(channel).init(request)
    except GRPCError as error:
        found = {type(detail): detail for detail in error.details or ()}
        retry = found.get(error_details_pb2.RetryInfo)
        violations = found.get(error_details_pb2.BadRequest, error_details_pb2.BadRequest()).field_violations
        return {
            "reason": found[error_details_pb2.ErrorInfo].reason,
            "fields": [each.field for each in violations],
            "retry_seconds": retry and retry.retry_delay.seconds,
        }
    raise AssertionError("the Init was not refused")


async def main(address: str, draining: str) -> None:
    trainer = Trainer()
    server = Server([trainer])
    listener = socket.create_server(("127.0.0.1", 0))
    await server.start(sock=listener)
    target = f"127.0.0.1:{listener.getsockname()[1]}"
    callback = v1.Callback(target=target, protocol=1, features=["abandon_chat"])

    def init(rollout_id: str) -> v1.InitRequest:
        return v1.InitRequest(rollout_id=rollout_id, spec=v1.RolloutSpec(messages=[QUESTION]), callback=callback)

    async with connect(address) as channel, connect(draining) as refusing:
        answer = await v1.RolloutServiceStub(channel).init(init("betterproto2-1"))
        outcome = await asyncio.wait_for(trainer.outcome, 30)
        segment = outcome.samples[0].segments[0]
        shown = {
            "created": answer.created,
            "tools": len(answer.tools),
            "chats": [[chat.sample, chat.chat_number] for chat in trainer.chats],
            "status": outcome.status.name,
            "ids": list(segment.ids),
            "logprobs": list(segment.logprobs),
            "mask_runs": list(segment.mask_runs),
            "invalid": await refusal(channel, init("")),
            "draining": await refusal(refusing, init("betterproto2-2")),
        }
    print(json.dumps(shown))
    server.close()
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
