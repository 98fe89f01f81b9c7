"""A trajectory is a view of a rollout's events and its outcome. Works for the rollouts of every agent."""

import contextlib
from collections.abc import Iterable
from typing import Any

from osmosis_grpc.compat.agentic.step_builder import StepBuilder
from osmosis_grpc.compat.agentic.trajectory import COMPLETED, StepType, StopReason, Trajectory, TrajectoryStep
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import (
    ChatPurpose,
    ChatResponse,
    FailureReason,
    RolloutOutcome,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.protocol.types.outcome import OutcomeStatus, lacks

BEGAN = "agentic"
"""The event with which an agent of this package begins: its type, its format, its tools' parameters."""
BEGAN_KEYS = frozenset({"agent_type", "format", "parameters", "finish_tools"})
OWN_STEPS = "agentic_steps"
"""The event with the steps of an author's run_trajectory(), after its end."""
STOP_REASON = "stop_reason"
"""The key of the outcome's extra_fields with the StopReason."""


class TrajectoryView:
    """Makes a trajectory of events as they come. Used by all that run, read and stream trajectories.

    At the end, the steps of an author's run_trajectory() replace the steps of its chats and tool calls.
    """

    def __init__(self, request_id: str = "") -> None:
        self.trajectory = Trajectory(request_id=request_id)
        self._builder = StepBuilder(self.trajectory)
        self.ended = False
        """Whether the rollout has ended."""
        self._own_steps: list[TrajectoryStep] = []
        """The steps that an author's run_trajectory() has made."""
        self._judged: set[tuple[str, int]] = set()
        self._tokens: int | None = 0
        """The tokens so far; None if a reply has no counts."""

    def add(self, event: TrajectoryEvent) -> list[TrajectoryStep]:
        """Take the next event. Return the steps that it makes."""
        before = len(self.trajectory.steps)
        kind, at = event.kind, event.time
        self.trajectory.request_id = self.trajectory.request_id or event.rollout_id
        match kind:
            case events.Logged(name=name, data=data) if name == BEGAN and data.keys() >= BEGAN_KEYS:
                self._own_steps = []
                self._builder.begin(data["format"], data["parameters"], data["finish_tools"])
                self.trajectory.metadata["agent_type"] = data["agent_type"]
            case events.Logged(name=name, data=data) if name == OWN_STEPS:
                with contextlib.suppress(InvalidArgument):  # an agent loop has logged something else under this name
                    self._own_steps = Trajectory.from_dict({"request_id": "", "steps": data.get("steps")}).steps
            case events.ChatRequested():
                if kind.purpose is ChatPurpose.JUDGE:
                    self._judged.add((kind.sample, kind.chat_number))
                else:
                    self._builder.asked(kind.messages, kind.chat_number, timestamp=at)
            case events.ChatAnswered() if (kind.sample, kind.chat_number) not in self._judged:
                self._answered(kind, at)
            case events.ToolReturned():
                content = kind.message.get("content") if kind.message else None
                self._builder.returned(
                    kind.tool_call_id, kind.name, content, kind.error, timestamp=at, duration=kind.latency
                )
            case events.Graded(chat_number=number, name="") if number:
                self._builder.rewarded(kind.reward, number)
            case events.Ended(outcome=outcome):
                self._builder.close(timestamp=at)
                last = self.trajectory.steps[before:]
                self.end(outcome)
                return last
        return self.trajectory.steps[before:]

    def _answered(self, kind: events.ChatAnswered, at: float) -> None:
        response = kind.response
        used = _tokens(response)
        self._tokens = None if used is None or self._tokens is None else self._tokens + used
        self.trajectory.total_tokens = self._tokens
        first: dict[str, Any] = {"duration": kind.latency}
        if response.tokens is not None:
            first["token_ids"] = [int(token) for token in response.tokens.ids]
            first["attention_mask"] = [1] * len(response.tokens.ids)
            if response.tokens.logprobs is not None and len(response.tokens.logprobs):
                first["log_probs"] = [float(value) for value in response.tokens.logprobs]
        self._builder.answered(response.message, kind.chat_number, first, timestamp=at)

    def end(self, outcome: RolloutOutcome) -> None:
        """Take the outcome: the end, the reward, the messages and the tokens. Later outcomes add what is missing."""
        made, failure, self.ended = self.trajectory, outcome.failure, True
        if self._own_steps:
            made.set_steps(self._own_steps)
        made.stop_reason = stop_reason(outcome, made)
        made.is_completed = made.stop_reason in COMPLETED
        made.error = failure.message if failure else None
        made.final_reward = outcome.reward
        made.metadata |= {key: value for key, value in outcome.extra_fields.items() if key != STOP_REASON}
        if outcome.samples:
            sample = outcome.samples.get("main") or next(iter(outcome.samples.values()))
            made.messages = [dict(message) for message in sample.messages]
            why = lacks(sample)
            if why:
                made.metadata["not_trainable"] = why
            made.segments = [
                {
                    "ids": segment.ids.tolist(),
                    "mask": segment.mask().astype(int).tolist(),
                    "logprobs": segment.aligned_logprobs().tolist(),
                }
                for segment in sample.segments
                if not segment.referred
            ]


def trajectory_of(recorded: Iterable[TrajectoryEvent], outcome: RolloutOutcome | None = None) -> Trajectory:
    """Return the trajectory of a rollout's events.

    `outcome` has the messages and the tokens, which the event of the end does not have if it came over the network.
    """
    view = TrajectoryView()
    for event in recorded:
        view.add(event)
    if outcome is not None:
        view.end(outcome)
    return view.trajectory


_NO_REPLY = frozenset(
    {
        FailureReason.CHAT_REFUSED,
        FailureReason.REPLY_UNREADABLE,
        FailureReason.TRAINER_LOST,
        FailureReason.TRAINER_UNREACHABLE,
    }
)
"""The failures of rollouts whose chat got no reply."""


def stop_reason(outcome: RolloutOutcome, trajectory: Trajectory) -> StopReason:
    """Return why a rollout ended. Exactly one reason holds for each outcome."""
    match outcome.status:
        case OutcomeStatus.CANCELLED:
            return StopReason.CANCELLED
        case OutcomeStatus.DEADLINE_EXCEEDED:
            return StopReason.TIMEOUT
        case OutcomeStatus.FAILED:
            reason = outcome.failure.reason if outcome.failure else ""
            return StopReason.LLM_ERROR if reason in _NO_REPLY else StopReason.ERROR
    given = outcome.extra_fields.get(STOP_REASON)
    if given in list(StopReason):
        return StopReason(given)
    return StopReason.FINAL_ANSWER if _answers(trajectory) else StopReason.MAX_STEPS  # an agent loop of another author


def _answers(trajectory: Trajectory) -> bool:
    return bool(trajectory.steps) and trajectory.steps[-1].step_type is StepType.FINAL_ANSWER


def _tokens(response: ChatResponse) -> int | None:
    usage = response.usage or {}
    if isinstance(usage.get("total_tokens"), int):
        return int(usage["total_tokens"])
    counts = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
    if all(isinstance(count, int) for count in counts):
        return sum(counts)  # type: ignore[arg-type]
    return None
