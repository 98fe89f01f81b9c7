"""Converts the options of `list` to a filter, and its rollouts to records."""

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from osmosis_grpc.protocol.types import Fork, RolloutFilter, RolloutInfo, RolloutState
from osmosis_grpc.protocol.types.failure_reasons import FailureReason

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIX = re.compile(r"@\d{1,11}(?:\.\d+)?")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")
_LONGEST = 100 * 365 * 86_400.0
"""The longest age in seconds: 100 years, so that every time can be sent to a server."""


def origin(fork: Fork | None) -> dict[str, Any] | None:
    """Return the origin of a fork; None for other rollouts."""
    if fork is None:
        return None
    chat = {"sample": fork.sample, "chat_number": fork.chat_number}
    return {"rollout_id": fork.rollout_id, "attempt": fork.attempt, **chat}


class FilterError(ValueError):
    """An option of `list` has an invalid value. The message says which values are valid."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(problem)
        self.option = option
        """The name of the option without its leading dashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """The options of the command line, unparsed."""

    states: tuple[str, ...] = ()
    agent: str = ""
    group: str = ""
    reasons: tuple[str, ...] = ()
    finish_reason: str = ""
    min_reward: float | None = None
    max_reward: float | None = None
    since: str | None = None
    before: str | None = None
    stalled: str | None = None
    undelivered: bool = False
    forked_from: str = ""
    limit: int = 50
    """0 means all."""
    oldest: bool = False


_FIELDS = {
    {"states": "state", "reasons": "reason"}.get(field.name, field.name.replace("_", "-")): field.name
    for field in fields(ListOptions)
}
"""Maps the names of options, without leading dashes, to fields of ListOptions."""
_DEFAULTS = {field.name: field.default for field in fields(ListOptions)}
_NUMBERS = ("min-reward", "max-reward", "limit")


def options_of(pairs: Iterable[tuple[str, str]]) -> ListOptions:
    """Parse pairs of a name and a value, such as ("min-reward", "0.5"). Empty values are ignored.

    Raises FilterError for an unknown name, or if the value of a numeric option is not a number.
    """
    given: dict[str, Any] = {}
    for name, text in pairs:
        field = _FIELDS.get(name)
        if field is None:
            raise FilterError(name, f"there is no such filter; the filters are {', '.join(_FIELDS)}")
        if text == "":
            continue
        if field in ("states", "reasons"):
            given[field] = tuple(dict.fromkeys((*given.get(field, ()), text)))
        elif field in ("undelivered", "oldest"):
            given[field] = text.lower() not in ("0", "false", "no")
        else:
            given[field] = _number(name, text) if name in _NUMBERS else text
    return ListOptions(**given)


def pairs_of(options: ListOptions) -> list[tuple[str, str]]:
    """Return the options as pairs that options_of() can parse. Skip options that have their defaults."""
    found: list[tuple[str, str]] = []
    for name, field in _FIELDS.items():
        value = getattr(options, field)
        if value == _DEFAULTS[field]:
            continue
        texts = value if isinstance(value, tuple) else ("1" if value is True else f"{value}",)
        found += [(name, text) for text in texts]
    return found


def rollout_filter(given: ListOptions, now: float) -> RolloutFilter:
    """Convert options to a filter. `now` is in Unix seconds. Raises FilterError for an invalid option."""
    since, before = (_moment(name, getattr(given, name), now) for name in ("since", "before"))
    stalled = _seconds("stalled", given.stalled)
    if stalled is not None and stalled <= 0:
        raise FilterError("stalled", "0 is not a time greater than zero; name one, for example 5s")
    for name, value in (("min-reward", given.min_reward), ("max-reward", given.max_reward)):
        if value is not None and math.isnan(value):
            raise FilterError(name, "nan is not a number; name one, for example 0.5")
    return RolloutFilter(
        states=tuple(_state(text) for text in given.states),
        group_id=given.group,
        undelivered=given.undelivered,
        forked_from=given.forked_from,
        agent_loop=given.agent,
        finish_reason=given.finish_reason,
        failure_reasons=tuple(_reason(text) for text in given.reasons),
        min_reward=given.min_reward,
        max_reward=given.max_reward,
        accepted_after=since,
        accepted_before=before,
        stalled=stalled,
    )


def _number(name: str, text: str) -> float | int:
    try:
        return int(text) if name == "limit" else float(text)
    except ValueError:
        raise FilterError(
            name, f"{text!r} is not a number; name one, for example {'50' if name == 'limit' else '0.5'}"
        ) from None


def _moment(option: str, text: str | None, now: float) -> float | None:
    """Return the Unix time of an age such as 2h, or of @SECONDS."""
    if text is None or not text.startswith("@"):
        age = _seconds(option, text)
        return None if age is None else now - age
    if _UNIX.fullmatch(text) is None:
        raise FilterError(
            option, f"{text!r} is not a time; name Unix seconds such as @1790000000, or an age such as 2h"
        )
    return float(text[1:])


def _seconds(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise FilterError(option, f"{text!r} is not a time; name one such as 5s, 10m, 2h or 1d")
    seconds = float(found[1]) * _UNITS[found[2]]
    if seconds > _LONGEST:
        raise FilterError(option, f"{text[:40]!r} is more than 100 years; name a shorter time, such as 2h")
    return seconds


def _state(text: str) -> RolloutState:
    try:
        return RolloutState(text.upper())
    except ValueError:
        states = ", ".join(RolloutState).lower()
        raise FilterError("state", f"{text!r} is not a state; the states are {states}") from None


def _reason(text: str) -> str:
    name = text.upper().replace("-", "_")
    if name not in tuple(FailureReason):
        near = difflib.get_close_matches(name, FailureReason, 3, 0.6)
        which = f"do you mean {' or '.join(near)}?" if near else f"the reasons are {', '.join(FailureReason)}"
        raise FilterError("reason", f"{text!r} is not a reason; {which}")
    return name


def list_record(info: RolloutInfo, now: float) -> dict[str, Any]:
    """Return the record of a rollout, with times in Unix seconds and durations in seconds."""
    end = info.end_time
    group = info.group
    return {
        "rollout_id": info.rollout_id,
        "attempt": info.attempt,
        "agent_loop": info.agent_loop,
        "state": info.state.value,
        "activity": None
        if end is not None
        else {"description": info.activity.description, "start_time": info.activity.start_time},
        "group": None if group is None else {"id": group.id, "index": group.index, "size": group.size},
        "forked_from": origin(info.fork),
        "chats": info.chats,
        "prompt_tokens": info.prompt_tokens,
        "response_tokens": info.response_tokens,
        "elapsed": max(0.0, (now if end is None else end) - info.accept_time),
        "idle": None if info.progress_time is None else max(0.0, now - info.progress_time),
        "reward": info.reward,
        "finish_reason": info.finish_reason or None,
        "failure_reason": info.failure_reason or None,
        "failure_summary": info.failure_summary or None,
        "accept_time": info.accept_time,
        "start_time": info.start_time,
        "end_time": end,
        "undelivered": info.undelivered,
        "last_event_number": info.last_event_number,
    }
