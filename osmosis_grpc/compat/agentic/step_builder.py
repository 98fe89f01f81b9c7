"""Makes the steps of a trajectory from what happened: messages, replies, and results of tools."""

import json
from collections.abc import Sequence
from typing import Any

from osmosis_grpc.compat.agentic.reply_formats import FORMATS, OBSERVATION, Answer, Call, Part, Thought, Unreadable
from osmosis_grpc.compat.agentic.tool_calls import ERROR_TYPES
from osmosis_grpc.compat.agentic.trajectory import StepType, Trajectory, TrajectoryStep
from osmosis_grpc.protocol.types import Message

Fields = dict[str, Any]


class StepBuilder:
    """Appends steps to a trajectory. The methods are called in the order in which things happened.

    `fields` are further fields of the steps, such as `timestamp`.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        self._format = FORMATS["native"]
        self._parameters: dict[str, list[str]] = {}
        self._finish_tools: Sequence[str] = ()
        self._actions: dict[str, TrajectoryStep] = {}
        self._unread: list[tuple[Unreadable, int]] = []
        """Actions of the newest reply that cannot be read and have no call id: no tool answers them."""

    def begin(self, reply_format: str, parameters: dict[str, list[str]], finish_tools: Sequence[str]) -> None:
        """Set the format of the replies, the parameters of the tools, and the tools that end the rollout."""
        self._format = FORMATS.get(reply_format, self._format)
        self._parameters, self._finish_tools = parameters, finish_tools

    def asked(self, messages: Sequence[Message], chat_number: int, **fields: Any) -> None:
        """Add the new messages of a chat. Results of tools are left out, because returned() adds them."""
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
        """Give the reward of a chat to the first step of its reply."""
        for step in self.trajectory.steps:
            if step.metadata.get("chat_number") == chat_number and step.step_type not in _READ:
                step.reward_score = reward
                return

    def close(self, **fields: Any) -> None:
        """Add the errors of actions that cannot be read."""
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
