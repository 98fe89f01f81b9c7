"""A small tokenizer for the rollouts of `view --demo`.

A token is a word with the space before it, up to three digits, or one other character. The tokenizer learns its
vocabulary from the texts that it encodes, so it needs no files of a model.
"""

import re
from collections.abc import Iterable, Sequence

from osmosis_grpc.protocol.types import Message
from osmosis_grpc.records.reading.message_text import mapping

_PIECES = re.compile(r"<\|?/?\w+\|?>| ?\d{1,3}| ?[^\W\d]+|\s|.", re.S)


class Words:
    """Encodes texts, and decodes single tokens as TokenTexts does."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text. A new word gets the next id."""
        return [self._ids.setdefault(piece, len(self._ids)) for piece in _PIECES.findall(text)]

    def of(self, ids: Iterable[int], /) -> list[str]:
        """Return the text of each id, or "" for an unknown id."""
        texts = list(self._ids)
        return [texts[number] if number < len(texts) else "" for number in ids]


def prompt_text(messages: Sequence[Message]) -> str:
    """Render a conversation as a chat template would, up to the beginning of a reply."""
    return "".join(f"<|{each['role']}|>{reply_text(each)}" for each in messages) + "<|assistant|>"


def reply_text(message: Message) -> str:
    """Return the text that a model would sample for a message, with an end token."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(mapping(part).get("text", "<|image|>")) for part in content)
    thought = message.get("reasoning_content")
    called = (mapping(mapping(call).get("function")) for call in message.get("tool_calls") or ())
    calls = "".join(f"<call>{call.get('name')}{call.get('arguments')}</call>" for call in called)
    return (f"<think>{thought}</think>" if thought else "") + f"{content}{calls}<|end|>"
