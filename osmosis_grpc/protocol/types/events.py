"""Trajectory events describe everything that happens in a rollout. They are numbered from 1 without gaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.protocol.types.annotation import Annotation
from osmosis_grpc.protocol.types.chat import ChatPurpose, ChatResponse
from osmosis_grpc.protocol.types.earlier_run import EndedBy
from osmosis_grpc.protocol.types.fast_init import fast_init
from osmosis_grpc.protocol.types.messages import Message, ToolDict
from osmosis_grpc.protocol.types.outcome import Receipt, RolloutOutcome
from osmosis_grpc.protocol.types.requests import InitRequest
from osmosis_grpc.protocol.types.samples import ChatRef, SplitReason


@fast_init
@dataclass(frozen=True, slots=True)
class Accepted:
    """The rollout was accepted."""

    init: InitRequest
    tools: Sequence[ToolDict] = ()


@fast_init
@dataclass(frozen=True, slots=True)
class Started:
    """Its agent started, after `queue_time` seconds."""

    queue_time: float = 0.0
    agent_version: str = ""
    """The version of the agent loop; empty if it is unknown."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Its agent started again in the same attempt."""

    previous_last_event: int = 0


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequested:
    """The agent requested a reply. `messages` follow the reply of the chat that it continues."""

    sample: str
    chat_number: int
    parent_chat: int = 0
    messages: Sequence[Message] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] | None = None
    purpose: ChatPurpose = ChatPurpose.POLICY
    policy: str = ""
    passed: Mapping[str, Any] | None = None
    """The parameters that the agent passed, if pinned ones made `params` differ from them; otherwise None."""

    @property
    def agents_params(self) -> Mapping[str, Any]:
        """The parameters that the agent passed. Pinned parameters do not change them."""
        return self.params if self.passed is None else self.passed


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswered:
    """The trainer replied after `latency` seconds."""

    sample: str
    chat_number: int
    response: ChatResponse
    latency: float = 0.0
    recorded_event: int = 0
    """If the reply was read from the journal, the number of the event that recorded it; otherwise 0."""
    forked: bool = False
    """Whether the reply was recorded in the rollout that this rollout forks from, under the same sample and number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFailed:
    """A chat, or an attempt at it, ended without a reply."""

    sample: str
    chat_number: int
    code: int = 0
    """A google.rpc.Code."""
    message: str = ""
    will_retry: bool = False


@fast_init
@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A tool was called."""

    call: Mapping[str, Any]
    sample: str = ""
    """The sample whose reply has the call; empty if it is not known."""
    chat_number: int = 0
    """The number of the chat whose reply has the call; 0 if it is not known."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned:
    """A tool returned after `latency` seconds, or raised `error`."""

    tool_call_id: str
    name: str
    message: Message | None = None
    error: str = ""
    latency: float = 0.0
    sample: str = ""
    """See ToolCalled."""
    chat_number: int = 0


@dataclass(frozen=True, slots=True)
class Logged:
    """The agent logged something."""

    name: str
    data: Mapping[str, Any] = field(default_factory=dict)
    sample: str = ""
    """The sample that the agent named; empty if it named none."""
    chat_number: int = 0
    """The newest chat of that sample; 0 if there is none."""


@fast_init
@dataclass(frozen=True, slots=True)
class SampleAdded:
    """A sample began. The other fields are those of Sample."""

    sample: str
    policy: str = ""
    parent: ChatRef | None = None
    train: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentClosed:
    """A segment is complete."""

    sample: str
    index: int
    chats: tuple[int, ...] = ()
    tokens: int = 0
    sampled_tokens: int = 0
    drift_index: int | None = None
    split: SplitReason | None = None


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """A caller requested the cancellation of the rollout."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Graded:
    """The agent or a grader set a reward."""

    sample: str
    """The name of the sample; empty for the whole rollout."""
    reward: float | None = None
    chat_number: int = 0
    """The chat that the reward is for; 0 for the whole sample."""
    name: str = ""
    """The name of the part of the reward; empty for the reward itself."""


@fast_init
@dataclass(frozen=True, slots=True)
class Ended:
    """The rollout ended. StreamEvents sends its outcome without messages and segments."""

    outcome: RolloutOutcome
    by: EndedBy = EndedBy()


@fast_init
@dataclass(frozen=True, slots=True)
class Delivered:
    """The delivery of the outcome has ended."""

    receipt: Receipt | None = None
    given_up: str = ""
    """Why the server gave up the delivery; empty if there is an outcome."""
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Annotated:
    """The trainer, or a person, annotated the rollout. This event may follow the end."""

    annotation: Annotation


EventKind = (
    Accepted
    | Started
    | Resumed
    | ChatRequested
    | ChatAnswered
    | ChatFailed
    | ToolCalled
    | ToolReturned
    | Logged
    | SampleAdded
    | SegmentClosed
    | CancelAsked
    | Graded
    | Ended
    | Delivered
    | Annotated
)


@fast_init
@dataclass(frozen=True, slots=True)
class TrajectoryEvent:
    """One numbered event of a rollout."""

    rollout_id: str
    attempt: int
    event_number: int
    """The number of the event, from 1 within the attempt."""
    time: float
    """Unix seconds, by the server's clock."""
    kind: EventKind
