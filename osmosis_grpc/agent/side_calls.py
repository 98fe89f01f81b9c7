"""Recognises the side calls of programs: short requests beside the task, such as the one for a conversation's title.

The reward of a rollout is not about side calls. So they get other samples than `main`, even if they come first, and are
not trained on, unless the program makes no other requests.
"""

import re
from collections.abc import Sequence
from typing import Any

from osmosis_grpc.agent.message_keys import text_of
from osmosis_grpc.protocol.types import Message

_BY_PROGRAM = (
    ("title", r"title generator|(generate|write|create|make) (a|an|the) (\w+ ){0,4}title\b|isNewTopic"),
    ("next-speaker", r"next_speaker|who should speak next"),
    ("suggestions", r"prompt suggestion|suggest(ed)? (follow-?ups?|replies)"),
    ("guardrail", r"guardrail|content (policy|safety) (check|classifier)"),
)
"""Texts in the system prompts that programs write for each kind."""
_BY_MESSAGE = (
    ("title", r"Generate a (\w+ )?title for this conversation"),
    ("quota", r"quota\Z"),
    ("next-speaker", r"Analyze \*only\* the content and structure of your immediately preceding"),
)
"""How the last message of a kind begins. A user's task may have similar text later, so only the beginning counts."""
_SYSTEM, _LAST = (
    [(name, re.compile(pattern, re.IGNORECASE | re.DOTALL)) for name, pattern in kinds]
    for kinds in (_BY_PROGRAM, _BY_MESSAGE)
)
_READ = 4000
"""The number of characters of a text that are searched."""


def side_call(messages: Sequence[Message], tools: Sequence[Any] | None) -> str:
    """Return the kind of a side call; empty for a request about the task. A request with tools is not a side call."""
    if tools or any(message.get("role") in ("assistant", "tool") for message in messages):
        return ""
    system = "\n".join(text_of(message)[:_READ] for message in messages if message.get("role") == "system")
    last = "".join(text_of(message)[:_READ].strip() for message in messages[-1:])
    by_program = (name for name, pattern in _SYSTEM if pattern.search(system))
    return next(by_program, "") or next((name for name, pattern in _LAST if pattern.match(last)), "")
