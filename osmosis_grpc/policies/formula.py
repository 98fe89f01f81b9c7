"""Computes token ids and logprobs by a formula, so that a test can compute the expected tokens itself.

Each reply and each message has a name, and `start` is the crc32 of that name in UTF-8. Token i, counted from 0, has the
id (start + 7919 * i) mod 32,000. The logprob of an id is -(id mod 1000 + 1) / 1000 as float32.

- A reply has the name "ROLLOUT/SAMPLE/NUMBER" and 8 + start mod 25 tokens, unless the policy sets another count.
- A message that no model sampled has the name "ROLLOUT/SAMPLE/message/M" and 4 tokens. M is its index, from 0.
- A prompt consists of all tokens of the continued chat, followed by the tokens of each new message.
"""

import zlib

import numpy as np

from osmosis_grpc.protocol.types import ChatRequest, Ids, TokenBlock

VOCABULARY = 32_000
IDS_PER_MESSAGE = 4


def reply_tokens(rollout_id: str, sample: str, number: int, count: int | None = None) -> TokenBlock:
    """Return the tokens of a reply: ids uint32 and logprobs float32, shape (n,)."""
    start = _start(f"{rollout_id}/{sample}/{number}")
    ids = _ids(start, 8 + start % 25 if count is None else count)
    return TokenBlock(ids, (-(ids % 1000 + 1.0) / 1000).astype("<f4"))


def message_ids(rollout_id: str, sample: str, position: int) -> Ids:
    """Return the ids of a message that no model sampled: uint32, shape (4,)."""
    return _ids(_start(f"{rollout_id}/{sample}/message/{position}"), IDS_PER_MESSAGE)


def prompt_ids(request: ChatRequest) -> Ids:
    """Return the ids of a chat's prompt: uint32, shape (p,)."""
    new = range(request.prefix_len, len(request.messages))
    parts = [message_ids(request.rollout_id, request.sample, position) for position in new]
    known = request.known_ids if request.known_ids is not None else np.empty(0, dtype="<u4")
    return np.concatenate([known, *parts]).astype("<u4")


def _start(text: str) -> int:
    return zlib.crc32(text.encode())


def _ids(start: int, count: int) -> Ids:
    return ((start + 7919 * np.arange(count, dtype=np.int64)) % VOCABULARY).astype("<u4")
