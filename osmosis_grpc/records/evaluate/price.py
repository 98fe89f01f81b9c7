"""The price of replies: what the model server or litellm reports, or an estimate from the prices of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.protocol.types import ChatResponse
from osmosis_grpc.protocol.types.jsontext import is_finite

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for a million tokens."""

    prompt: float
    reply: float

    @classmethod
    def of(cls, text: str) -> "Price":
        """Return the price of a text PROMPT/REPLY. Raises ValueError for another text."""
        first, slash, second = text.partition("/")
        try:
            price = cls(float(first), float(second))
        except ValueError:
            slash = ""
        if not slash or not all(is_finite(each) and each >= 0 for each in (price.prompt, price.reply)):
            raise ValueError(f"{text!r} is not PROMPT/REPLY in dollars for a million tokens, for example 0.25/2")
        return price


def cost_of(response: ChatResponse, price: Price | None) -> float | None:
    """Return the price of a reply in dollars; None if it is unknown. The given price wins over a reported one."""
    usage: Mapping[str, Any] = response.usage or {}
    if price is not None:
        counts = [usage.get(name) or 0 for name in ("prompt_tokens", "completion_tokens")]
        return (counts[0] * price.prompt + counts[1] * price.reply) / MILLION
    for reported in (response.extra.get("cost"), usage.get("cost")):
        if isinstance(reported, int | float) and not isinstance(reported, bool) and is_finite(reported):
            return float(reported)
    return None
