"""The sampling parameters that a TokenGenerator gets, under the names of OpenAI and vLLM."""

import functools
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.requests import LENGTHS

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of one reply are sampled. None means the default of the model server."""

    max_tokens: int
    """The most tokens to sample, at least 1."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """Sample from the `top_k` most likely tokens; -1 or 0 for all."""
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Texts that end the reply."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    """How many tokens are sampled before the model may end its turn."""
    bad_words: tuple[str, ...] = ()
    """Texts that are never sampled."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """The value to add to the logit of each token id."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only ids that may be sampled; empty for all."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    top_logprobs: int = 0
    """Also return the logprobs of this many most likely tokens, as the extras top_logprobs and top_logprob_ids."""
    json_schema: str = ""
    """A JSON Schema for the text of the reply; empty for any text."""
    regex: str = ""
    """A regular expression for the text of the reply; empty for any text."""
    grammar: str = ""
    """A grammar for the text of the reply; empty for any text."""


NEAR_ZERO = 2.0**-126
"""The smallest normal float32, for parameters that must be above 0: engines treat 0 as absent."""
NUMBERS = {
    "temperature": (0.0, math.inf),
    "top_p": (NEAR_ZERO, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (NEAR_ZERO, math.inf),
    "logit_bias": (-100.0, 100.0),
}
"""The least and the greatest value of each numeric parameter."""
WHOLE = {"top_k": -1, "seed": -(2**63), "top_logprobs": 0, "min_tokens": 0}
"""The least value of each integer parameter."""
WITHOUT_EFFECT = frozenset(
    {"model", "logprobs", "user", "metadata", "parallel_tool_calls", "priority", "store", "reasoning_effort"}
    | {
        "verbosity",
        "thinking",
        "client_metadata",
        "prediction",
        "prompt_cache_key",
        "service_tier",
        "audio",
        "modalities",
    }
)
"""Parameters that are ignored, because they change no token here. The policy reads `priority` itself."""
SAMPLED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "use_beam_search": (False,),
    "echo": (False,),
    "prompt_logprobs": (),
}
"""Parameters with the only values that make a reply exactly one sample from the prompt."""
ONLY: dict[str, tuple[Any, ...]] = {**SAMPLED, "n": (1,), "stream": (False,)}
"""Parameters with the only values that a token policy supports."""


def sampling_of(params: Mapping[str, Any], max_tokens: int) -> Sampling:
    """Return the sampling of a chat. `max_tokens` applies if the chat sets none.

    Raises InvalidArgument for a value that is out of bounds, and for a parameter that is not supported.
    """
    values = {name: value for name, value in params.items() if value is not None and name not in WITHOUT_EFFECT}
    lengths = [values.pop(name) for name in LENGTHS if name in values]
    made: dict[str, Any] = {"max_tokens": _whole("max_tokens", lengths[0] if lengths else max_tokens, 1)}
    for name, value in values.items():
        if name in _READERS:
            made["json_schema" if name == "response_format" else name] = _READERS[name](name, value)
        elif name == "tool_choice":
            _tool_choice(name, value)
        elif name not in ONLY:
            raise InvalidArgument(f"params.{name}", "is not a sampling parameter of a token policy")
    check_only(values, ONLY, "a token policy")
    if made.get("min_tokens", 0) > made["max_tokens"]:
        raise InvalidArgument("params.min_tokens", f"is {made['min_tokens']}, above max_tokens {made['max_tokens']}")
    return Sampling(**made)


def refuse(sampling: Sampling, names: Iterable[str], generator: str) -> None:
    """Raise InvalidArgument, naming `generator`, for the first of these parameters that is set."""
    for name in names:
        if getattr(sampling, name):
            given = "response_format" if name == "json_schema" else name
            raise InvalidArgument(f"params.{given}", f"is not supported by {generator}")


def with_room_for(sampling: Sampling, most: int) -> Sampling:
    """Return the sampling limited to `most` tokens."""
    most = min(sampling.max_tokens, most)
    return replace(sampling, max_tokens=most, min_tokens=min(sampling.min_tokens, most))


def check_only(params: Mapping[str, Any], only: Mapping[str, tuple[Any, ...]], policy: str) -> None:
    """Raise InvalidArgument, naming `policy`, for a parameter whose value is neither None nor in `only`."""
    for name in only.keys() & params.keys():
        if params[name] is not None and params[name] not in only[name]:
            allowed = " or ".join(map(repr, only[name] or (None,)))
            raise InvalidArgument(f"params.{name}", f"is {params[name]!r:.80}; {policy} serves only {allowed}")


def _number(name: str, value: Any) -> float:
    least, most = NUMBERS[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        low = "above 0" if least == NEAR_ZERO else f"from {least:g}"
        bounds = low if math.isinf(most) else f"{low}, at most {most:g}"
        raise InvalidArgument(f"params.{name}", f"is {value!r:.80}, not a number {bounds}")
    return float(value)


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise InvalidArgument(f"params.{name}", f"is {value!r:.80}, not a whole number from {least}")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"params.{name}", f"is a {type(value).__name__}, not a text")
    return value


def _list(name: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidArgument(f"params.{name}", f"is a {type(value).__name__}, not a list")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(_text(name, item) for item in _list(name, value))
    if "" in texts:
        raise InvalidArgument(f"params.{name}", "has an empty text")
    return texts


def _ids(name: str, value: Any) -> tuple[int, ...]:
    return tuple(_whole(name, item, 0) for item in _list(name, value))


def _allowed(name: str, value: Any) -> tuple[int, ...]:
    if not value:
        raise InvalidArgument(f"params.{name}", "is empty; leave it out to allow all tokens")
    return _ids(name, value)


def _bias(name: str, value: Any) -> dict[int, float]:
    """Return the bias of each token id. In JSON, and so in OpenAI's format, the ids are strings."""
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"params.{name}", f"is a {type(value).__name__}, not an object of numbers by token ids")
    read: dict[int, float] = {}
    for key, number in value.items():
        token = int(key) if isinstance(key, str) and key.isdecimal() else key
        read[_whole(f"{name}.{key}", token, 0)] = _number(name, number)
    return read


def _tool_choice(name: str, value: Any) -> None:
    """Check a tool choice. A required call is only warned about, because a token policy cannot force it."""
    if isinstance(value, Mapping) or value == "required":
        _warn_of_choice()
    elif value not in ("auto", "none"):
        raise InvalidArgument(f"params.{name}", f"is {value!r:.80}, not auto, none, required or a function")


@functools.cache
def _warn_of_choice() -> None:
    log.warning("a chat requires a tool call, which a token policy cannot force; a reply without it is marked")


def _json_schema(name: str, value: Any) -> str:
    """Return the schema of OpenAI's response_format as JSON, or an empty string if it allows any text."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return ""
    if kind == "json_object":
        return '{"type": "object"}'
    schema = value.get("json_schema") if isinstance(value, Mapping) else None
    if kind == "json_schema" and isinstance(schema, Mapping) and isinstance(schema.get("schema"), Mapping):
        return json.dumps(dict(schema["schema"]))
    raise InvalidArgument("params.response_format", "has no type text, json_object or json_schema with a schema")


_READERS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(NUMBERS, _number),
    **{name: functools.partial(_whole, least=least) for name, least in WHOLE.items()},
    "regex": _text,
    "grammar": _text,
    "stop": _texts,
    "bad_words": _texts,
    "stop_token_ids": _ids,
    "allowed_token_ids": _allowed,
    "logit_bias": _bias,
    "ignore_eos": lambda name, value: bool(value),
    "response_format": _json_schema,
}
"""Functions that check and convert a parameter, given its name and its value."""
