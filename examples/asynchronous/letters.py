"""A model in NumPy that spells words, and its generator: tokens in, tokens out, each with the version of its weights.

A token is a byte. A message is the first letter of its role, its text and a byte 0, for example "U3\\0Aabca\\0".
"""

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osmosis_grpc.policies import FinishReason, Generated, GenerateRequest
from osmosis_grpc.trainer import Batch

LETTERS, LENGTH, WORDS = 4, 4, 8
SECONDS = 0.002
"""The time that a token takes. A real model is as slow as this, or slower."""
CLIP, RATE = 0.2, 4.0

Weights = NDArray[np.float64]
"""The logits of each letter: float64, shape (WORDS, LENGTH, LETTERS)."""


class Tokenizer:
    """Has what a ChatRenderer needs of a tokenizer."""

    all_special_ids = (0,)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return bytes(token_ids).decode()

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: Any = None,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        **params: Any,
    ) -> str:
        texts = [f"{message['role'][0].upper()}{message['content']}\0" for message in conversation]
        return "".join([*texts, "A" if add_generation_prompt else ""])


class Generator:
    """Samples letters. New weights end the open calls with ABORTED, and TokenPolicy continues their replies."""

    def __init__(self, weights: Weights, version: int) -> None:
        self.weights, self.version = weights, version

    def load(self, weights: Weights, version: int) -> None:
        """Use new weights from the next token on."""
        self.weights, self.version = weights, version

    async def generate(self, request: GenerateRequest, /) -> Generated:
        weights, version = self.weights, self.version
        word, first = place(request.prompt_ids.tolist())
        random = np.random.default_rng([version, first, zlib.crc32(f"{request.session_id}/{word}".encode())])
        ids: list[int] = []
        logprobs: list[float] = []
        reason = FinishReason.STOP
        for position in range(first, LENGTH):
            await asyncio.sleep(SECONDS)
            if self.version != version:
                reason = FinishReason.ABORTED
                break
            scores = log_softmax(weights[word, position])
            letter = int(random.choice(LETTERS, p=np.exp(scores)))
            ids.append(ord("a") + letter)
            logprobs.append(float(scores[letter]))
        return Generated(
            token_ids=np.array(ids, dtype="<u4"),
            logprobs=np.array(logprobs, dtype="<f4"),
            finish_reason=reason,
            weight_version=str(version),
        )

    async def abort(self, request_id: str, /) -> None:
        """Do nothing: a call ends within a few milliseconds."""


def place(ids: Sequence[int]) -> tuple[int, int]:
    """Return the word and the position of the letter that follows these tokens."""
    *_, asked, begun = bytes(ids).split(b"\0")
    return int(asked[1:]) % WORDS, len(begun) - 1


def log_softmax(logits: Weights) -> Weights:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Weights = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def trained(weights: Weights, batch: Batch) -> Weights:
    """Return the weights after one step of policy gradient. The ratios correct for tokens of earlier weights."""
    gradient = np.zeros_like(weights)
    assert batch.advantages is not None
    for row, advantage in enumerate(batch.advantages):
        ids = batch.ids[row].tolist()
        for column in np.flatnonzero(batch.loss_mask[row]):
            word, position = place(ids[:column])
            letter = ids[column] - ord("a")
            scores = log_softmax(weights[word, position])
            ratio = np.exp(scores[letter] - batch.logprobs[row, column])
            if (ratio < 1 + CLIP) if advantage > 0 else (ratio > 1 - CLIP):
                gradient[word, position] += advantage * ratio * (np.eye(LETTERS)[letter] - np.exp(scores))
    result: Weights = weights + RATE * gradient / len(batch)
    return result
