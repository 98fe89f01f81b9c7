"""One run of a case against an agent server: the state and the helpers that its steps share."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from osmosis_grpc.testing.conformance.calls import Calls, Metadata, Trace
from osmosis_grpc.testing.conformance.cases import Case
from osmosis_grpc.testing.conformance.links import Failed, Link
from osmosis_grpc.testing.conformance.protobuf_data import CaseError, Data, to_data
from osmosis_grpc.testing.conformance.run import Run
from osmosis_grpc.testing.conformance.server_links import AcceptLink, AttachLink, CallbackLink, TrainerListener

AGENT = "conformance"
"""The agent loop that the server under test hosts."""
AGENT_STEPS = frozenset({"chat", "message", "back_to", "at_once", "sleep", "reward", "log", "raise", "end"})
"""The steps of this agent."""
QUESTION = {"role": "user", "text": "start"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUnderTest:
    """An agent server, and how the suite connects to it."""

    target: str
    channel: grpc.aio.Channel
    """A channel for calls."""
    new_channel: Callable[[], grpc.aio.Channel]
    """Returns a channel with a connection of its own, for a stream."""
    listener: TrainerListener
    tokens: Mapping[str, Metadata]
    """The headers of each credential: `first`, `second`, `admin`, `none` and `wrong`."""
    has: frozenset[str] = frozenset()
    """The features and options that cases may need and that are available."""
    info: Data = field(default_factory=dict)
    """The answer to GetServerInfo."""


class ServerRun(Run):
    """The state of a case, including its current rollout, chat and outcome."""

    def __init__(self, under_test: ServerUnderTest, case: Case, mode: str, prefix: str, trace: Trace) -> None:
        saved: Data = {"id": prefix, "callback": under_test.listener.address} | under_test.info["limits"]
        super().__init__(case, mode, prefix, trace, saved)
        self.server = under_test
        self.chat: Any = None
        self.answered = True
        """Whether the current chat is answered."""
        self.drained = False
        self.outcome: Any = None
        self.tokens: dict[tuple[str, str, int], tuple[list[int], list[float]]] = {}
        """The ids (prompt and reply) and the logprobs (reply) of each answered chat, by rollout, sample and number."""
        self.prefix = prefix

    def calls(self, credential: str = "first") -> Calls:
        """Return an object that makes calls with a credential."""
        return Calls(self.server.channel, self.server.tokens[credential], self.trace)

    async def open(self, hello: Mapping[str, Any] | None, name: str = "main", credential: str = "first") -> Link:
        """Open a link, or its next stream. `same` in the hello names a link whose attachment id this one gets."""
        given = dict(hello) if hello is not None else None
        same = given.pop("same", None) if given else None
        link = self.add_link(name, credential)
        if same is not None:
            link.attachment_id = self.link(same).attachment_id  # type: ignore[attr-defined]
        if given is not None:
            given |= {key: value for key, value in self.case.body.get("link", {}).items() if key not in given}
        await link.open(given)
        return link

    def new_link(self, name: str, credential: str = "first") -> Link:
        """Return a link that is not open yet."""
        metadata = self.server.tokens[credential]
        if self.mode == "attach":
            return AttachLink(self.server.new_channel(), metadata, self.trace)
        if self.mode == "accept":
            return AcceptLink(self.server.listener, self.trace, self.prefix)
        prefix = self.prefix if name == "main" else f"{self.prefix}-{name}"
        return CallbackLink(self.calls(credential), self.server.listener, self.trace, prefix)

    def init(self, given: Mapping[str, Any]) -> Data:
        """Return an InitRequest as data.

        `given` may have id, script, tools, attempt, spec, and other fields of the request.
        """
        own = dict(given)
        suffix, metadata = own.pop("id", None), own.pop("metadata", {})
        metadata |= {key: own.pop(key) for key in ("script", "tools") if key in own}
        for number, step in enumerate(metadata.get("script", ()), 1):
            if not AGENT_STEPS & step.keys():
                raise CaseError(f"script: step {number} has none of {', '.join(sorted(AGENT_STEPS))}")
        spec = {"agent_loop": AGENT, "messages": [QUESTION], "metadata_json": json.dumps(metadata)}
        rollout_id = self.prefix if suffix is None else f"{self.prefix}-{suffix}"
        spec |= own.pop("spec", {})
        return {"rollout_id": rollout_id, "attempt": 1, **own, "spec": spec}

    def frame(self, data: Data) -> Data:
        """Complete the frame that a step gives. It may begin the case's rollout."""
        if "init" not in data:
            return data
        self.rollout_id = self.rollout_id or self.prefix
        return {"init": self.init(data["init"])}

    def owns(self, frame: Any) -> bool:
        """Return whether a frame belongs to this case, not to an earlier case on the same stream."""
        whole = frame.outcome if hasattr(frame, "outcome") else frame
        return str(getattr(whole, "rollout_id", self.prefix)).startswith(self.prefix)

    def response(self, chat: Any, given: Mapping[str, Any]) -> Data:
        """Return a ChatResponse as data, and remember its tokens.

        `given` may have text, prompt, tokens, logprobs, prefix. With `raw`, its other keys are fields of ChatResponse.
        """
        own = dict(given)
        message = own.pop("message", {"role": "assistant", "text": own.pop("text", "ok")})
        made: Data = {"message": message, "finish_reason": "stop"}
        if own.pop("raw", False):
            return made | own
        prefix = own.pop("prefix", 0)
        if "prompt" in own:
            made["prompt"] = {"ids": (prompt := own.pop("prompt"))}
            parent = chat.delta.parent_chat if chat.WhichOneof("history") == "delta" else chat.full.parent_chat
            known = self.tokens.get((chat.rollout_id, chat.sample, parent), ([], []))[0]
            ids, logprobs = own.pop("tokens", []), own.pop("logprobs", None)
            made["tokens"] = {"ids": ids, "logprobs": [-0.5] * len(ids) if logprobs is None else logprobs}
            whole = [*known[:prefix], *prompt, *ids]
            self.tokens[chat.rollout_id, chat.sample, chat.chat_number] = whole, made["tokens"]["logprobs"]
            made["prompt_prefix"] = prefix
        return made | own

    async def reply(self, link: Link, chat: Any, given: Mapping[str, Any]) -> None:
        """Answer a chat with a response, or with the `status` in `given`."""
        self.answered = self.answered or chat is self.chat
        names = {name: getattr(chat, name) for name in ("rollout_id", "attempt", "sample", "chat_number")}
        result = {"status": given["status"]} if "status" in given else {"response": self.response(chat, given)}
        await link.send([{"chat_reply": names | result}])

    async def receipt(self, link: Link, outcome: Any, given: Any = "RECEIPT_RECORDED") -> None:
        """Answer an outcome with a receipt, or with a status."""
        names = {name: getattr(outcome, name) for name in ("rollout_id", "attempt", "result_id")}
        result = {"receipt": given} if isinstance(given, str) and given.startswith("RECEIPT") else {"status": given}
        await link.send([{"complete_reply": names | result}])

    async def settle(self, link: Link) -> None:
        """Wait until the server has handled all frames so far. Over callbacks, which have no order, wait a moment."""
        if link.inbox.over is not None:
            return
        if self.mode == "callback":
            await asyncio.sleep(0.3)
            return
        name = f"barrier-{len(link.inbox.frames)}"
        await link.send([{"cancel": {"id": name, "request": {"group_id": f"{self.prefix}-nobody"}}}])
        await link.take({"cancel_reply": {"id": name}}, self.saved)

    def segments(self, outcome: Any) -> list[Data]:
        """Return the segments of an outcome. Fill in the tokens of segments that only refer to their chats."""
        found = []
        for sample in outcome.samples:
            for segment in sample.segments:
                data = to_data(segment)
                if not data["ids"] and segment.mask_runs:
                    keys = [(outcome.rollout_id, sample.name, number) for number in segment.chats]
                    unknown = [key for key in keys if key not in self.tokens]
                    if unknown:
                        raise Failed(f"a segment refers to chats that were not answered with tokens: {unknown}")
                    data["ids"] = self.tokens[keys[-1]][0]
                    data["logprobs"] = [each for key in keys for each in self.tokens[key][1]]
                found.append(data | {"sample": sample.name})
        return found

    async def close(self) -> None:
        """Resume a drained server, cancel what the case has started, and close its links."""
        quiet = Calls(self.server.channel, self.server.tokens["first"], Trace())
        if self.drained:
            admin = self.server.tokens.get("admin", self.server.tokens["first"])
            with contextlib.suppress(Exception):
                await Calls(self.server.channel, admin, Trace()).data("Drain", {"cancel": True})
        if self.rollout_id:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(2):
                    await quiet.data("Cancel", {"rollout_id_prefix": self.prefix, "reason": "the case is over"})
        await super().close()
