"""The contracts of the Osmosis SDK's POST /rollout: reads a body, and finds out how to call the rollout's trainer.

The body decides the contract. A body with `completion_callback_url` asks for callbacks: as in 0.3.0 if its chat URL
contains the rollout id, as in 0.3.1 and 0.3.2 if it has `llm_api_key`, otherwise as in 0.2.18 to 0.2.31. A body without
callbacks asks for a polling lease, as in 0.3.3 and later: the trainer then polls for the result.
"""

import hashlib
import json
import uuid
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import unquote

from pydantic import Field

from osmosis_gateway.http_bodies import MAX_URL_CHARS, Body, LaxFlag, LaxNumber, Messages, bounded_metadata, validated
from osmosis_grpc.agent.workflow_runnable import GRADE_KEY
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Callback, InitRequest, RolloutRequest, TraceContext, jsontext
from osmosis_grpc.protocol.types.messages import copy_messages
from osmosis_grpc.protocol.types.requests import MAX_HEADER_CHARS, MAX_ID_CHARS, check_header, check_id, spec_digest

FIELDS = {
    "messages": "initial_messages",
    "metadata_json": "metadata",
    "agent_timeout": "agent_timeout_sec",
    "grader_timeout": "grader_timeout_sec",
}
"""Fields of RolloutSpec, with the key of the body that fills each. Other fields have the same name as their key."""
SHORTEST, LONGEST = 0.001, 10 * 365 * 24 * 3600.0
"""Time limits are cut to this range, in seconds. In the contract, a limit of 0 or less has already expired."""
_LEASE = "lease-"
"""The callback of a polled rollout has the run id `lease-DIGEST`, so that a restarted server can check the lease."""


@dataclass(frozen=True, slots=True)
class Contract:
    """The differences between the versions."""

    name: str
    status: int
    """The HTTP status of the answer to an accepted rollout."""
    names_samples: bool = False
    """Whether chats name their rollout and sample in headers, and the result can have any number of samples."""
    polled: bool = False
    """Whether the trainer polls for the result. Otherwise it gets two callbacks."""


CALLBACKS = Contract("0.2.18", 200, names_samples=True)
ONE_SAMPLE = Contract("0.3.0", 202)
POLLED = Contract("0.3.3", 202, polled=True)
_BY_NAME = {contract.name: contract for contract in (CALLBACKS, ONE_SAMPLE, POLLED)} | {"0.3.x": POLLED}
"""The contracts by name. Journals of earlier servers call POLLED 0.3.x."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The contract of one rollout, with its URLs and its key. The state of the rollout's callback holds them."""

    contract: Contract
    completion_url: str = ""
    grader_url: str = ""
    """Empty if the trainer wants no grades."""
    key: str = ""
    """The bearer token of the callbacks."""
    grade: bool = True
    """Whether the trainer wants rewards."""
    label: str | None = None

    def state(self) -> bytes:
        """Return the terms as bytes, for the state of a callback."""
        return json.dumps(asdict(self) | {"contract": self.contract.name}).encode()

    @classmethod
    def of(cls, state: bytes) -> "Terms | None":
        """Return the terms in the state of a callback; None if the rollout came by another route."""
        try:
            given = json.loads(state) if state else {}
            return cls(**given | {"contract": _BY_NAME[given["contract"]]})
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


class RolloutBody(Body):
    """Starts a rollout."""

    rollout_id: str | None = Field(
        default=None,
        max_length=MAX_ID_CHARS,
        description="One visible path segment, unique per rollout. Without it, the server makes one.",
    )
    initial_messages: Messages = Field(description="The conversation to start from, in OpenAI's format.")
    label: str | None = Field(default=None, description="The reference answer, for the grader.")
    metadata: dict[str, Any] | None = Field(default=None, description="Handed to the agent and the grader.")
    chat_completions_url: str = Field(
        max_length=MAX_URL_CHARS, description="A base URL. Chats go to its /chat/completions."
    )
    llm_api_key: str | None = Field(default=None, max_length=MAX_HEADER_CHARS, description="Sent with every chat.")
    controller_api_key: str | None = Field(
        default=None, max_length=MAX_HEADER_CHARS, description="Sent with callbacks, and with chats without their key."
    )
    completion_callback_url: str | None = Field(default=None, max_length=MAX_URL_CHARS)
    grader_callback_url: str | None = Field(default=None, max_length=MAX_URL_CHARS)
    grade: LaxFlag = Field(default=True, description="Whether the grader runs. Without callbacks only.")
    agent_timeout_sec: LaxNumber | None = None
    grader_timeout_sec: LaxNumber | None = None
    extra_fields: dict[str, Any] | None = Field(default=None, description="Ignored.")
    agent_loop: str | None = Field(
        default=None, max_length=MAX_ID_CHARS, description="Which agent, where a server hosts several."
    )


@dataclass(frozen=True, slots=True)
class Read:
    """The values read from a body of POST /rollout."""

    init: InitRequest
    contract: Contract


def read_rollout(body: Any, size: int, max_metadata_bytes: int, trace: TraceContext | None, lease: str) -> Read:
    """Read a body. `lease` becomes the lease of a polled rollout. Raises InvalidArgument naming the field."""
    given = validated(RolloutBody, body)
    terms = _terms(given, "llm_api_key" in body)
    rollout_id = uuid.uuid4().hex if given.rollout_id is None else given.rollout_id
    check_id(rollout_id, "rollout_id")
    if terms.contract.names_samples:
        check_sendable(rollout_id, "rollout_id", "x-rollout-id")
    for name in ("llm_api_key", "controller_api_key"):
        check_header(getattr(given, name) or "", name)
    if given.llm_api_key == "":
        raise InvalidArgument("llm_api_key", "is empty: leave it out, or send a key")
    metadata = dict(given.metadata or {}) if terms.grade else {**(given.metadata or {}), GRADE_KEY: False}
    unparsed: Any = bounded_metadata(metadata, max_metadata_bytes)[1]
    request = RolloutRequest(
        rollout_id=rollout_id,
        messages=copy_messages(given.initial_messages, "initial_messages", any_role=True),
        metadata=unparsed,
        agent_loop=given.agent_loop or "",
        label=given.label,
        agent_timeout=_seconds(given.agent_timeout_sec),
        grader_timeout=_seconds(given.grader_timeout_sec) if terms.grade else None,
        server_url=given.chat_completions_url,
    )
    callback = Callback(
        target=given.chat_completions_url,
        credential=given.llm_api_key or given.controller_api_key or "",
        state=terms.state(),
        run_id=lease_name(lease) if terms.contract.polled else "",
    )
    return Read(
        InitRequest(request=request, callback=callback, trace=trace, digest=spec_digest(request), size=size),
        terms.contract,
    )


def _terms(given: RolloutBody, has_llm_key: bool) -> Terms:
    """Return the terms that a body asks for. Raises InvalidArgument for a body that fits no contract."""
    label = given.label
    if given.completion_callback_url is None:
        for name in ("grader_callback_url", "controller_api_key"):
            if getattr(given, name) is not None:
                raise InvalidArgument("completion_callback_url", f"is missing, and {name} is given")
        return Terms(contract=POLLED, grade=given.grade, label=label)
    if not given.completion_callback_url:
        raise InvalidArgument("completion_callback_url", "is empty: leave it out to poll for the result, or send a URL")
    segments = unquote(given.chat_completions_url.partition("?")[0]).split("/")
    names_rollout = given.rollout_id is None or given.rollout_id in segments
    return Terms(
        contract=ONE_SAMPLE if has_llm_key or names_rollout else CALLBACKS,
        completion_url=given.completion_callback_url,
        grader_url=given.grader_callback_url or "",
        key=given.controller_api_key or "",
        grade=bool(given.grader_callback_url),
        label=label,
    )


def lease_name(lease: str) -> str:
    """Return the run id of a callback with this lease. The run id is a digest of the lease, so it is no secret."""
    return _LEASE + hashlib.sha256(lease.encode()).hexdigest()


def has_lease(init: InitRequest) -> bool:
    """Return whether the trainer of a rollout polls for its result."""
    return init.callback is not None and init.callback.run_id.startswith(_LEASE) and "://" in init.callback.target


def polled_terms(init: InitRequest) -> Terms:
    """Return the terms of a polled rollout. This works even if the journal has dropped the state of its callback."""
    request = init.request
    return Terms(contract=POLLED, grade=request.metadata.get(GRADE_KEY) is not False, label=request.label)


def check_sendable(text: str, field: str, header: str) -> None:
    """Raise InvalidArgument for a text that a header cannot carry unchanged."""
    if not text.isascii() or not text.isprintable() or text != text.strip():
        raise InvalidArgument(
            field, f"{jsontext.render(text)} cannot be sent in the header {header}, which has printable ASCII only"
        )


def _seconds(limit: float | None) -> float | None:
    return None if limit is None else min(max(limit, SHORTEST), LONGEST)
