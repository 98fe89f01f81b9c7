"""Records the tools that a Strands agent runs: each call with its time and its result. Needs the extra `strands`."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strands.hooks import AfterInvocationEvent, AfterToolCallEvent, BeforeToolCallEvent, HookOrder, HookRegistry

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.running_tool_call import RunningToolCall
from osmosis_grpc.protocol.types import Message
from osmosis_grpc.protocol.types.json_values import loggable


class ToolRecorder:
    """Hooks of one agent. Other hooks run before them, so the record has the final arguments and results.

    `written` returns messages of Strands in OpenAI's format.
    """

    def __init__(
        self, context: RolloutContext, sample: str, written: Callable[[Sequence[Message]], list[Message]]
    ) -> None:
        self._context = context
        self._sample = sample
        self._written = written
        self._running: dict[str, list[RunningToolCall]] = {}
        """The calls without a result, by call id. A call that is interrupted begins again with the same id."""

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Add the hooks to an agent."""
        registry.add_callback(BeforeToolCallEvent, self._begins, order=HookOrder.SDK_LAST)
        registry.add_callback(AfterToolCallEvent, self._returned, order=HookOrder.SDK_LAST)
        registry.add_callback(AfterInvocationEvent, self._stopped)

    def _begins(self, event: Any) -> None:
        use = event.tool_use
        function = {"name": str(use["name"]), "arguments": _text(use.get("input"))}
        call_id = str(use["toolUseId"])
        call = {"id": call_id, "type": "function", "function": function}
        running = self._context.start_tool_call(call, sample=self._sample)
        self._running.setdefault(call_id, []).append(running)

    def _returned(self, event: Any) -> None:
        call_id = str(event.tool_use["toolUseId"])
        open_calls = self._running.get(call_id)
        if not open_calls:
            return
        running = open_calls.pop()
        if not open_calls:
            del self._running[call_id]
        result = {**event.result, "toolUseId": call_id}
        messages = self._written([{"role": "user", "content": [{"toolResult": result}]}])
        if result.get("status") == "error":
            running.run.error = event.exception
            running.run.error_text = _error_text(result)
        running.returned(messages[0] if messages else None)

    def _stopped(self, event: Any) -> None:
        """End the time of calls without a result: an interrupted agent waits for an answer from outside."""
        for open_calls in self._running.values():
            for running in open_calls:
                running.end()


def _text(arguments: Any) -> str:
    """Return arguments as JSON. A policy's text that is not JSON is unchanged."""
    return arguments if isinstance(arguments, str) else json.dumps(loggable(arguments), ensure_ascii=False)


def _error_text(result: Mapping[str, Any]) -> str:
    """Return the text of an error result without Strands' prefix."""
    text = " ".join(str(block["text"]) for block in result.get("content") or () if "text" in block)
    return text.removeprefix("Error: ") or "the tool failed"
