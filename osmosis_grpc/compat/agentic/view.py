"""Makes trajectories from the events and outcomes of rollouts, of any agent.

The steps of a trajectory come from the messages, the replies and the tool results in the events.
"""

import contextlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from osmosis_grpc.compat.agentic.reply_formats import FORMATS, OBSERVATION, Answer, Call, Part, Thought, Unreadable
from osmosis_grpc.compat.agentic.tools import ERROR_TYPES
from osmosis_grpc.compat.agentic.trajectory import COMPLETED, StepType, StopReason, Trajectory, TrajectoryStep
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import (
    ChatPurpose,
    ChatResponse,
    FailureReason,
    Message,
    RolloutOutcome,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.protocol.types.outcome import OutcomeStatus, lacks

Fields = dict[str, Any]
BEGAN = "agentic"
"""The first event of an agent of this package: its type, its reply format, and the parameters of its tools."""
BEGAN_KEYS = frozenset({"agent_type", "format", "parameters", "finish_tools"})
OWN_STEPS = "agentic_steps"
"""The event with the steps that an agent's own run_trajectory() returned."""
STOP_REASON = "stop_reason"
"""The key of the StopReason in the outcome's extra_fields."""


class StepBuilder:
    """Appends steps to a trajectory. Call the methods in the order of the events.

    `fields` are further fields of the steps, such as `timestamp`.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        self._format = FORMATS["native"]
        self._parameters: dict[str, list[str]] = {}
        self._finish_tools: Sequence[str] = ()
        self._actions: dict[str, TrajectoryStep] = {}
        self._unread: list[tuple[Unreadable, int]] = []
        """Unreadable actions of the newest reply that have no call id, so that no tool result answers them."""

    def begin(self, reply_format: str, parameters: dict[str, list[str]], finish_tools: Sequence[str]) -> None:
        """Set the format of the replies, the parameters of the tools, and the tools that end the rollout."""
        self._format = FORMATS.get(reply_format, self._format)
        self._parameters, self._finish_tools = parameters, finish_tools

    def asked(self, messages: Sequence[Message], chat_number: int, **fields: Any) -> None:
        """Add the new messages of a chat, except tool results, which returned() adds."""
        self.close(**fields)
        for message in messages:
            text = _text(message.get("content"))
            result = self._format.name == "react" and chat_number > 1 and text.startswith(OBSERVATION)
            if message.get("role") in ("user", "developer") and not result:
                self._add(StepType.OBSERVATION, text, chat_number, **fields)

    def answered(self, message: Message, chat_number: int, first: Fields, **fields: Any) -> None:
        """Add the parts of a reply. `first` are the fields of its first step."""
        parts = self._format.read(message, self._parameters, chat_number)
        if not parts:
            parts = [Thought("")]
        acts = any(isinstance(part, Call | Unreadable) for part in parts)
        for part in parts:
            if isinstance(part, Answer) and acts:
                continue  # the model has not seen the results
            self._part(part, chat_number, {**fields, **first})
            first = {}

    def _part(self, part: Part, chat_number: int, fields: Fields) -> None:
        if isinstance(part, Thought | Answer):
            kind = StepType.THOUGHT if isinstance(part, Thought) else StepType.FINAL_ANSWER
            self._add(kind, part.text, chat_number, **fields)
        elif isinstance(part, Call):
            self._actions[part.call_id] = self._add(
                StepType.ACTION, part.text, chat_number,
                tool_name=part.name, tool_args=part.arguments, call_id=part.call_id, **fields,
            )  # fmt: skip
        else:
            error = {"success": False, "error": part.error, "error_type": "bad_arguments"}
            self._add(StepType.ACTION, part.text, chat_number, error, call_id=part.call_id or None, **fields)
            if not part.call_id:
                self._unread.append((part, chat_number))

    def returned(self, call_id: str, name: str, content: Any, error: str, **fields: Any) -> None:
        """Add the result of a tool call, or its error."""
        action = self._actions.get(call_id)
        chat_number = action.metadata.get("chat_number", 0) if action else 0
        metadata: Fields = {"success": not error}
        if error:
            kind, _, text = error.partition(": ")
            metadata |= {"error": text, "error_type": kind} if kind in ERROR_TYPES else {"error": error}
        self._add(
            StepType.ACTION_RESULT, _text(content), chat_number, metadata, tool_name=name or None, call_id=call_id,
            tool_args=action.tool_args if action else None, tool_result=None if error else _result(content), **fields,
        )  # fmt: skip
        if name in self._finish_tools and not error:
            given = (action.tool_args or {}).get("answer") if action else None
            self._add(StepType.FINAL_ANSWER, _text(given if given is not None else content), chat_number, **fields)

    def rewarded(self, reward: float | None, chat_number: int) -> None:
        """Set the reward of a chat on the first step of its reply."""
        for step in self.trajectory.steps:
            if step.metadata.get("chat_number") == chat_number and step.step_type not in _READ:
                step.reward_score = reward
                return

    def close(self, **fields: Any) -> None:
        """Add the errors of unreadable actions as their results."""
        unread, self._unread = self._unread, []
        for part, chat_number in unread:
            metadata = {"success": False, "error": part.error, "error_type": "bad_arguments"}
            self._add(StepType.ACTION_RESULT, f"Error: {part.error}", chat_number, metadata, **fields)

    def _add(
        self, kind: StepType, content: str, chat_number: int, metadata: Fields | None = None, **fields: Any
    ) -> TrajectoryStep:
        number = {"chat_number": chat_number} if chat_number else {}
        step = TrajectoryStep(step_type=kind, content=content, metadata=(metadata or {}) | number, **fields)
        self.trajectory.add_step(step)
        return step


_READ = (StepType.OBSERVATION, StepType.ACTION_RESULT)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(block.get("text", "")) for block in content if isinstance(block, dict))
    return content if isinstance(content, str) else "" if content is None else json.dumps(content, default=str)


def _result(content: Any) -> Any:
    if isinstance(content, str) and content[:1] in ("{", "["):
        try:
            return json.loads(content)
        except ValueError:
            return content
    return content


class TrajectoryView:
    """Makes a trajectory from events as they come.

    At the end, the steps of an agent's own run_trajectory() replace those made from its chats and tool calls.
    """

    def __init__(self, request_id: str = "") -> None:
        self.trajectory = Trajectory(request_id=request_id)
        self._builder = StepBuilder(self.trajectory)
        self.ended = False
        """Whether the rollout has ended."""
        self._own_steps: list[TrajectoryStep] = []
        """The steps of an agent's own run_trajectory()."""
        self._judged: set[tuple[str, int]] = set()
        self._tokens: int | None = 0
        """The number of tokens so far; None if a reply has no usage."""

    def add(self, event: TrajectoryEvent) -> list[TrajectoryStep]:
        """Add the next event, and return the steps that it adds."""
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
        """Set the end, the reward, the messages and the tokens from the outcome. May be called again with another."""
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

    Pass `outcome` if the events came over the network: their last event lacks the messages and the tokens.
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
"""The reasons of failures in which a chat got no reply."""


def stop_reason(outcome: RolloutOutcome, trajectory: Trajectory) -> StopReason:
    """Return why a rollout ended."""
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
    return StopReason.FINAL_ANSWER if _answers(trajectory) else StopReason.MAX_STEPS  # not an agent of this package


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
