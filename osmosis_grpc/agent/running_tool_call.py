"""Records a tool call that runs: its start and its end are events of the trajectory, and its time is tool time."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from osmosis_grpc.agent.call_origins import CallOrigin
from osmosis_grpc.agent.current_context import ToolRun, tool_watcher
from osmosis_grpc.agent.ports import Session
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Message, events, jsontext
from osmosis_grpc.protocol.types.json_values import readable
from osmosis_grpc.protocol.types.messages import copy_message
from osmosis_grpc.protocol.types.outcome import clip


def names_of(call: Any) -> tuple[str, str]:
    """Return a call's id and function name; empty texts if it has none."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    call_id = call.get("id") if isinstance(call, Mapping) else None
    return str(call_id or ""), str(name or "")


class RunningToolCall:
    """A tool call from its start to its end. The call begins when the object is made.

    `sample` is the sample whose reply asked for the call. Without it, the id of the call decides. `session` is None
    outside of a rollout.
    """

    def __init__(self, session: Session | None, call: Any, *, sample: str = "") -> None:
        call_id, name = names_of(call)
        origin = session.calls.find(call, sample) if session else CallOrigin()
        if session and sample and not origin.sample and (newest := session.newest_chat(sample)):
            origin = CallOrigin(sample, newest)
        self.run = ToolRun(clip(call_id or "unknown"), clip(name), sample=origin.sample, chat_number=origin.chat_number)
        """What is known about the call. The code that runs the tool writes its error into it."""
        self._session = session
        self._watcher = tool_watcher.get()
        if session and isinstance(call, Mapping):
            with contextlib.suppress(InvalidArgument):  # a call that cannot be sent does not come from a model
                session.record(events.ToolCalled(jsontext.copy(dict(call), "tool_call"), *origin))
        began = time.monotonic()
        self._done = session.tool_running(self.run.name) if session else lambda call_id: time.monotonic() - began
        self._ended = False

    def end(self, answered: str | None = None) -> None:
        """End the time of the call. `answered` is the call id of its message, if it has one. Idempotent."""
        if not self._ended:
            self._ended = True
            self.run.latency = self._done(self.run.call_id if answered is None else answered)
            if self._watcher:
                self._watcher(self.run)

    def returned(self, message: Message | None) -> None:
        """End the call and record its message; None for a call without one. Raises InvalidArgument."""
        self.end()
        if self._session:
            run, sendable = self.run, readable(message, "message")
            self._session.record(
                events.ToolReturned(
                    tool_call_id=run.call_id,
                    name=run.name,
                    latency=run.latency or 0.0,
                    error=clip(run.error_text),
                    message=None if message is None else copy_message(sendable, "message", any_role=True),
                    sample=run.sample,
                    chat_number=run.chat_number,
                )
            )
