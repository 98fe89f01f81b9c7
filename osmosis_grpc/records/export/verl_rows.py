"""Converts outcomes to the fields of verl's AgentLoopOutput, and checks what verl does not check.

The fields are those of verl 0.9.1, verl/experimental/agent_loop/agent_loop.py. A segment becomes one AgentLoopOutput:
the prompt is the first prompt of the segment, and the response is everything after it up to the last sampled token.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import RolloutOutcome, Tensor
from osmosis_grpc.protocol.types.samples import Cut, Dropped, check_choices
from osmosis_grpc.protocol.types.trainable import (
    Outcomes,
    Selection,
    TrainableSegment,
    Untrainable,
    check_choice,
    flatten,
)

TooLong = Literal["raise", "truncate", "skip"]
"""What to do with a segment above the limits. "truncate" cuts the end of the response, never the prompt."""

ROUTED_EXPERTS = "routed_experts"
_INT16 = np.iinfo(np.int16)


def step_of_version(version: str) -> int | None:
    """Return a policy version as verl's global step, or None if it is not an integer."""
    try:
        return int(version)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlConfig:
    """How outcomes become rows of verl."""

    prompt_length: int | None = None
    """The most tokens of a prompt, verl's `rollout.prompt_length`; None for no limit."""
    response_length: int | None = None
    """The most tokens of a response, verl's `rollout.response_length`; None for no limit."""
    too_long: TooLong = "raise"
    """What to do with a segment above the limits: "raise", "skip", or "truncate" the end of the response."""
    untrainable: Untrainable = "raise"
    """What to do with a sample that cannot be trained on: "raise" or "skip"."""
    cut: Cut = "train"
    """What to do with a sample that a limit has cut off (Sample.cut): "train", "mask" or "skip". A masked row keeps
    its reward, but has no tokens to train on."""
    dropped: Dropped = "skip"
    """What to do with replies that the agent dropped (Segment.dropped): "skip" or "train"."""
    extras: tuple[str, ...] = ()
    """The extras to include. "routed_experts" fills the field of that name; others go into `extra_fields`."""
    components: bool = True
    """Whether to include the named parts of the reward, as `reward_extra_info`. All rows then need the same parts."""
    step_of: Callable[[str], int | None] | None = None
    """Returns the global step of a policy version, or None. By default, versions are integers."""

    def __post_init__(self) -> None:
        check_choice("too_long", self.too_long, get_args(TooLong))
        check_choice("untrainable", self.untrainable, get_args(Untrainable))
        check_choices(self.cut, self.dropped)
        for name in ("prompt_length", "response_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgument(name, f"{value} is less than 1")

    def selection(self) -> Selection:
        """Return a new selection with the choices of this configuration."""
        return Selection(self.untrainable, cut=self.cut, dropped=self.dropped)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerlRow:
    """One AgentLoopOutput as arrays, with prompt length p and response length r."""

    source: TrainableSegment
    prompt_ids: NDArray[np.int64]
    """int64, shape (p,)."""
    response_ids: NDArray[np.int64]
    """int64, shape (r,)."""
    response_mask: NDArray[np.int64]
    """int64, shape (r,): 1 for tokens that the policy sampled."""
    response_logprobs: NDArray[np.float32]
    """float32, shape (r,): 0.0 where the mask is 0."""
    routed_experts: NDArray[np.int16] | None
    """int16, shape (p + r, layers, experts); None if it was not requested."""
    num_turns: int
    """The number of turns of user, assistant and tools. As in verl's tool_agent_loop, each chat counts as two."""
    metrics: Mapping[str, Any]
    extra_fields: Mapping[str, Any]

    def fields(self) -> dict[str, Any]:
        """Return the arguments of verl's AgentLoopOutput, with the same keys in every row of an export."""
        made: dict[str, Any] = {
            "prompt_ids": self.prompt_ids.tolist(),
            "response_ids": self.response_ids.tolist(),
            "response_mask": self.response_mask.tolist(),
            "response_logprobs": self.response_logprobs.tolist(),
            "reward_score": self.source.reward,
            "num_turns": self.num_turns,
            "metrics": dict(self.metrics),
            "extra_fields": dict(self.extra_fields),
        }
        if self.routed_experts is not None:
            made[ROUTED_EXPERTS] = self.routed_experts
        return made


def agent_loop_outputs(outcome: RolloutOutcome, config: VerlConfig | None = None) -> list[dict[str, Any]]:
    """Return the arguments of one verl AgentLoopOutput for each trainable segment of an outcome, in order.

    Args:
        outcome: The outcome.
        config: Lengths and choices.

    Raises:
        InvalidArgument: verl cannot train on the outcome. The message has the rollout's id and the reason.
    """
    return [row.fields() for row in VerlRows(config or VerlConfig()).of(outcome)]


@dataclass(slots=True)
class VerlRows:
    """Converts outcomes one after the other, and checks that all rows have the same keys and shapes."""

    config: VerlConfig
    selection: Selection = field(init=False)
    left_out: int = field(default=0, init=False)
    """The number of segments that were left out, because of a limit, or because the prompt or response was empty."""
    truncated: int = field(default=0, init=False)
    """The number of segments that were truncated."""
    _experts: tuple[int, ...] | None = field(default=None, init=False)
    _components: frozenset[str] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.selection = self.config.selection()

    def of(self, outcome: RolloutOutcome) -> list[VerlRow]:
        """Return the rows of the next outcome. Raises InvalidArgument with the rollout's id and the reason."""
        made = (self._row(segment) for segment in self.selection.of(outcome))
        return [row for row in made if row is not None]

    def all(self, outcomes: Outcomes) -> Iterator[VerlRow]:
        """Yield the rows of all outcomes in order. Raises InvalidArgument with a rollout's id and the reason."""
        for outcome in flatten(outcomes):
            yield from self.of(outcome)

    def counts(self) -> tuple[int, int, int]:
        """Return the number of rows, of skipped outcomes, samples and segments together, and of truncated rows."""
        return self.selection.segments - self.left_out, self.selection.skipped + self.left_out, self.truncated

    def _row(self, source: TrainableSegment) -> VerlRow | None:
        segment, config = source.segment, self.config
        mask = segment.mask()
        sampled = np.flatnonzero(source.sampled)
        start = int(sampled[0]) if len(sampled) else len(mask)
        end = int(sampled[-1]) + 1 if len(sampled) else start
        if problem := _empty(start, end):
            self._leave_out(source, problem, "untrainable", config.untrainable)
            return None
        if problem := self._above_limits(start, end - start):
            self._leave_out(source, problem, "too_long", config.too_long)
            return None
        if (limit := config.response_length) is not None and end - start > limit:
            self.truncated += 1
            end = start + limit
        ids, logprobs = segment.ids.astype(np.int64), segment.aligned_logprobs()
        row = VerlRow(
            source=source,
            prompt_ids=ids[:start],
            response_ids=ids[start:end],
            response_mask=mask[start:end].astype(np.int64),
            response_logprobs=logprobs[start:end],
            routed_experts=self._routed(source, end) if ROUTED_EXPERTS in config.extras else None,
            num_turns=2 * len(segment.chats),
            metrics=_metrics(source.outcome),
            extra_fields=self._extra_fields(source, end),
        )
        check_row(row)
        return row

    def _above_limits(self, prompt: int, response: int) -> str:
        config = self.config
        if config.prompt_length is not None and prompt > config.prompt_length:
            return f"its prompt has {prompt} tokens, more than prompt_length {config.prompt_length}"
        cut = config.response_length is None or config.too_long == "truncate"
        if not cut and response > (config.response_length or 0):
            return f"its response has {response} tokens, more than response_length {config.response_length}"
        return ""

    def _leave_out(self, source: TrainableSegment, problem: str, option: str, choice: str) -> None:
        if choice != "skip":
            raise InvalidArgument("outcomes", f'{source}: {problem}. Leave it out, or pass {option}="skip"')
        self.left_out += 1

    def _routed(self, source: TrainableSegment, end: int) -> NDArray[np.int16]:
        """Return the routed experts of the prompt and the response. Raises InvalidArgument if a token has none."""
        extra = source.segment.token_extras.get(ROUTED_EXPERTS)
        if not isinstance(extra, Tensor):
            only = "of its replies only" if ROUTED_EXPERTS in source.segment.sampled_extras else "of no or some tokens"
            raise InvalidArgument(
                ROUTED_EXPERTS,
                f"{source} has routed experts {only}, and verl replays them for every token. Let the policy return "
                "them for prompts, too, or leave them out of extras",
            )
        values = extra.numpy()[:end]
        if values.size and not _INT16.min <= int(values.min()) <= int(values.max()) <= _INT16.max:
            raise InvalidArgument(ROUTED_EXPERTS, f"{source} has an expert outside of int16")
        self._experts = self._experts or values.shape[1:]
        if values.shape[1:] != self._experts:
            raise InvalidArgument(
                ROUTED_EXPERTS, f"{source} has {values.shape[1:]} for each token, and rows before it {self._experts}"
            )
        return values.astype(np.int16)

    def _extra_fields(self, source: TrainableSegment, end: int) -> dict[str, Any]:
        segment, sample, outcome = source.segment, source.sample, source.outcome
        rewards = {each.chat_number: each.reward for each in sample.chat_rewards}
        components = (sample.reward_components or outcome.reward_components) if self.config.components else {}
        names = frozenset(components)
        self._components = names if self._components is None else self._components
        if names != self._components:
            raise InvalidArgument(
                "reward_components",
                f"{source} has the parts {sorted(names)}, and rows before it {sorted(self._components)}; "
                "verl needs the same parts in every row. Leave out the rollout, or pass components=False",
            )
        steps = [self._step(source, span.version) for span in segment.versions]
        known = [step for step in steps if step is not None]
        complete = len(known) == len(steps) and known
        made = {
            "turn_scores": [rewards[chat] for chat in segment.chats if rewards.get(chat) is not None],
            "tool_rewards": [],
            "min_global_steps": min(known) if complete else None,
            "max_global_steps": max(known) if complete else None,
            "reward_extra_info": dict(components),
        }
        for name in self.config.extras:
            if name != ROUTED_EXPERTS:
                made[name] = _aligned(source, name, end)
        return made

    def _step(self, source: TrainableSegment, version: str) -> int | None:
        step: Any = (self.config.step_of or step_of_version)(version)
        if step is None:
            return None
        try:
            if isinstance(step, bool):
                raise TypeError
            return operator.index(step)
        except TypeError:
            raise InvalidArgument(
                "step_of", f"returns {step!r} for version {version!r} of {source}; a global step is an int"
            ) from None


def check_row(row: VerlRow) -> None:
    """Raise InvalidArgument for a row on which verl would train wrongly without an error.

    verl pads a mask that is too short with pad ids, and logprobs with zeros. It does not check values.
    """
    count = len(row.response_ids)
    for name in ("response_mask", "response_logprobs"):
        if len(getattr(row, name)) != count:
            raise InvalidArgument(name, f"{row.source} has {len(getattr(row, name))} for {count} tokens")
    masked = not row.source.segment.sampled
    if not np.isin(row.response_mask, (0, 1)).all() or not (masked or row.response_mask.any()):
        raise InvalidArgument("response_mask", f"{row.source}: its values must be 0 or 1, and at least one must be 1")
    wrong = ~np.isfinite(row.response_logprobs)
    if wrong.any():
        index = int(wrong.argmax())
        raise InvalidArgument("response_logprobs", f"{row.source}: logprob {index} is {row.response_logprobs[index]}")
    if row.routed_experts is not None and len(row.routed_experts) != len(row.prompt_ids) + count:
        raise InvalidArgument(ROUTED_EXPERTS, f"{row.source} has {len(row.routed_experts)} rows")


def _empty(start: int, end: int) -> str:
    if start == end:
        return "no token of it is sampled, so its response is empty"
    return "" if start else "its prompt is empty, and verl needs a prompt"


def _metrics(outcome: RolloutOutcome) -> dict[str, Any]:
    """Return verl's AgentLoopMetrics of a rollout. Times are in seconds."""
    times = outcome.metrics
    return {
        "generate_sequences": times.model_time,
        "tool_calls": times.tool_time,
        "compute_score": 0.0,
        "num_preempted": -1,
    }


def _aligned(source: TrainableSegment, name: str, end: int) -> Any:
    """Return an extra for the prompt and the response, as an array, or as a list of arrays if it is ragged."""
    try:
        extra = source.segment.aligned_extra(name)
    except InvalidArgument as error:
        raise InvalidArgument("extras", f"{source}: {error}") from None
    return extra.numpy()[:end]


def object_array(values: Iterable[Any]) -> NDArray[np.object_]:
    """Return a one-dimensional object array. np.array() would turn lists of equal length into a matrix."""
    listed = list(values)
    made = np.empty(len(listed), dtype=object)
    for index, value in enumerate(listed):
        made[index] = value
    return made
