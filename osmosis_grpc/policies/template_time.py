"""The time that a chat template writes, such as today's date: it stays the same in all prompts of a rollout.

Templates read the clock with `strftime_now`. Without a fixed time, the prompts of a rollout would differ after
midnight, and its sample would get a new segment there. A macro of this name takes the place of the function, because
transformers gives no functions to templates.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from osmosis_grpc.supervise import SYSTEM
from osmosis_grpc.types import ChatRequest

MOST = 16_384
"""The most rollouts whose time is kept. The one that was not used for the longest time is forgotten first."""
DAYS = 7
"""A first prompt that another process rendered is looked for in so many earlier days. No rollout lasts longer."""
NAME = "strftime_now"
_MACRO = "{% macro strftime_now(format) %}{{ osmosis_times[format] }}{% endmacro %}\n"
"""The newline is not written, and the template begins on a line of its own."""
_CALL = re.compile(rf"\b{NAME}\s*\(")
_WITH_TEXT = re.compile(rf"""\b{NAME}\s*\(\s*(?:'([^'\\]*)'|"([^"\\]*)")\s*\)""")


class TemplateTimes:
    """The time of the first prompt of each rollout."""

    def __init__(self) -> None:
        self._times: OrderedDict[tuple[str, int], datetime] = OrderedDict()

    def of(self, request: ChatRequest, *, continues: bool) -> list[datetime]:
        """Return the time of a chat's rollout.

        If the rollout is not known and the chat continues another one, return this moment on today and on earlier days:
        the template may have written one of these days. keep() takes the one that it has written.
        """
        key = request.rollout_id, request.attempt
        if key in self._times:
            self._times.move_to_end(key)
            return [self._times[key]]
        now = datetime.fromtimestamp(SYSTEM.time())
        return [now - timedelta(days=days) for days in range(DAYS + 1 if continues else 1)]

    def keep(self, request: ChatRequest, time: datetime) -> None:
        """Keep the time of a rollout."""
        self._times[request.rollout_id, request.attempt] = time
        if len(self._times) > MOST:
            self._times.popitem(last=False)


def clocked_template(tokenizer: Any, params: Mapping[str, Any], tools: Any) -> str:
    """Return the source of the chat template if it writes the time; otherwise an empty text.

    `params` are the variables of the template. It is empty, too, if they have a clock of their own, or if the template
    computes the format of a time.
    """
    chosen = getattr(tokenizer, "get_chat_template", None)
    source = params.get("chat_template", getattr(tokenizer, "chat_template", None))
    if isinstance(source, Mapping) and callable(chosen):
        source = chosen(None, tools)
    return source if isinstance(source, str) and NAME not in params and _formats(source) else ""


def at_time(source: str, time: datetime) -> dict[str, Any]:
    """Return the arguments of apply_chat_template() with which a template writes a time."""
    return {"chat_template": _MACRO + source, "osmosis_times": {each: time.strftime(each) for each in _formats(source)}}


@lru_cache(maxsize=16)
def _formats(source: str) -> frozenset[str]:
    """Return the formats in which a template writes the time; none if it computes one."""
    found = _WITH_TEXT.findall(source)
    return frozenset(map("".join, found)) if len(found) == len(_CALL.findall(source)) else frozenset()
