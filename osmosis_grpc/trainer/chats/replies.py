"""The reply to a chat in wire form."""

import asyncio
import time

from osmosis_grpc.errors import Internal
from osmosis_grpc.link.channel_options import MAX_REPLY_BYTES
from osmosis_grpc.trainer.chats.cache import ChatCache
from osmosis_grpc.trainer.chats.sample import PendingChat
from osmosis_grpc.types import ChatRequest
from osmosis_grpc.types.completion import describe
from osmosis_grpc.wire.trainer import reply_bytes


def reply_of(asked: PendingChat, continues: int) -> bytes:
    """Returns the reply of an answered chat, its prompt without the tokens of chat `continues`. Raises Internal."""
    written, asked.written = asked.written, None
    try:
        reply = written if written is not None and asked.as_kept(continues) else reply_bytes(asked.reply(continues))
    except Exception as problem:  # the policy may have put anything into it
        raise Internal(f"the policy failed: its reply cannot be sent: {describe(problem)}") from problem
    if len(reply) > MAX_REPLY_BYTES:
        raise Internal(f"the reply to chat {asked.number} has {len(reply)} bytes, more than {MAX_REPLY_BYTES}")
    return reply


async def answered(cache: ChatCache, request: ChatRequest) -> bytes:
    """Wait until a chat is answered. Returns its reply. Raises the CallError of its sampling."""
    chat = cache.chat(request, time.monotonic())
    if not chat.done.done():
        await asyncio.wait({chat.done})
    chat.done.result()
    return reply_of(chat, request.continues)
