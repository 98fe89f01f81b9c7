"""A tokenizer with 113 tokens, and a chat template like ChatML.

A token is a character, or one of PIECES. A tool call is written as Hermes models write it:

    <tool_call>
    {"name": "add", "arguments": {"a": 2, "b": 3}}
    </tool_call>
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

PIECES = (
    "<|pad|>",
    "<|im_start|>",
    "<|im_end|>",
    "system\n",
    "user\n",
    "assistant\n",
    "tool\n",
    '<tool_call>\n{"name": "',
    '", "arguments": {"a": ',
    ', "b": ',
    "}}\n</tool_call>",
    "add",
    "subtract",
    "multiply",
    "divide",
    "What is ",
    "#### ",
)
TOKENS = (*PIECES, *map(chr, range(32, 127)), "\n")
PAD, END = TOKENS.index("<|pad|>"), TOKENS.index("<|im_end|>")

_IDS = {token: number for number, token in enumerate(TOKENS)}
PATTERN = "|".join(map(re.escape, sorted(PIECES, key=len, reverse=True))) + "|[\\s\\S]"
"""The regular expression whose matches are the tokens of a text."""


class Tokenizer:
    """Has what a ChatRenderer needs of a tokenizer."""

    all_special_ids = (PAD, TOKENS.index("<|im_start|>"), END)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of a text. A character that is not ASCII becomes a question mark."""
        return [_IDS.get(found, _IDS["?"]) for found in re.findall(PATTERN, text)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""
        return "".join(TOKENS[n] for n in token_ids if not (skip_special_tokens and n in self.all_special_ids))

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        **params: Any,
    ) -> Any:
        """Return a conversation as text, or as token ids. The names of the tools are a message in front of it."""
        names = " ".join(tool["function"]["name"] for tool in tools or ())
        text = f"<|im_start|>system\n{names}<|im_end|>\n" if names else ""
        for message in conversation:
            text += f"<|im_start|>{message['role']}\n{text_of(message)}<|im_end|>\n"
        text += "<|im_start|>assistant\n" if add_generation_prompt else ""
        return self.encode(text) if tokenize else text


def text_of(message: Mapping[str, Any]) -> str:
    """Return a message as text, its tool calls included."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    texts = [message.get("content"), *(tool_call(call["name"], call["arguments"]) for call in calls)]
    return "\n".join(filter(None, texts))


def tool_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a tool call as text."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
