"""Recognises the side calls of programs: short requests beside the task, such as the one for a conversation's title.

The reward of a rollout says nothing about them. They get samples with names of their own, which are not trained on, and
the sample `main` stays free for the task, whoever asks first.
"""

import re
from collections.abc import Sequence
from typing import Any

from osmosis_grpc.agent.message_keys import text_of
from osmosis_grpc.protocol.types import Message

_KINDS = (
    ("title", r"title generator|(generate|write|create|make)\b.{0,80}\btitle\b|isNewTopic|conversation title"),
    ("quota", r"\Aquota\Z"),
    ("topic", r"new (conversation )?topic"),
    ("next-speaker", r"next_speaker|who should speak next"),
    ("suggestions", r"prompt suggestion|suggest(ed)? (follow-?ups?|replies)"),
    ("guardrail", r"guardrail|content (policy|safety) (check|classifier)|moderat(e|ion) (the|this|check)"),
    ("safety", r"command (prefix|injection)|prompt injection"),
)
"""What requests of a kind say in their system prompt or at the beginning of their last message."""
_PATTERNS = [(name, re.compile(pattern, re.IGNORECASE | re.DOTALL)) for name, pattern in _KINDS]
_READ = 4000
"""The characters of a text that are searched."""


def side_call(messages: Sequence[Message], tools: Sequence[Any] | None) -> str:
    """Return the kind of a side call; empty for a request about the task. A request with tools is no side call."""
    if tools or any(message.get("role") in ("assistant", "tool") for message in messages):
        return ""
    texts = [text_of(message)[:_READ].strip() for message in messages if message.get("role") == "system"]
    texts += [text_of(message)[:_READ].strip() for message in messages[-1:]]
    return next((name for name, pattern in _PATTERNS if any(map(pattern.search, texts))), "")
