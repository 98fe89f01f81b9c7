"""The values that all other packages use. They depend on no transport and no clock.

Nothing in this package imports grpc, google or asyncio. Messages and tool schemas are plain dicts. All other values are
frozen dataclasses.
"""

from osmosis_grpc.protocol.types.annotation import Annotation, SegmentAnnotation
from osmosis_grpc.protocol.types.chat import AbandonReason, ChatPurpose, ChatRequest, ChatResponse
from osmosis_grpc.protocol.types.earlier_run import EarlierRun, EndedBy
from osmosis_grpc.protocol.types.events import EventKind, TrajectoryEvent
from osmosis_grpc.protocol.types.extras import Extra, Extras
from osmosis_grpc.protocol.types.failure_reasons import FailureReason
from osmosis_grpc.protocol.types.messages import Message, ToolDict
from osmosis_grpc.protocol.types.outcome import (
    Cause,
    Failure,
    OutcomeStatus,
    Receipt,
    RolloutMetrics,
    RolloutOutcome,
    RolloutState,
)
from osmosis_grpc.protocol.types.requests import (
    Callback,
    CallbackTls,
    Fork,
    Group,
    InitRequest,
    RolloutRequest,
    TraceContext,
)
from osmosis_grpc.protocol.types.rollout_info import (
    Activity,
    CancelResult,
    Capacity,
    JournaledRollout,
    OutcomeSummary,
    RolloutFilter,
    RolloutInfo,
)
from osmosis_grpc.protocol.types.samples import (
    ChatRef,
    ChatReward,
    PrefixChat,
    Sample,
    SampledChat,
    Segment,
    SplitReason,
)
from osmosis_grpc.protocol.types.stack_frames import StackFrame
from osmosis_grpc.protocol.types.tensors import RaggedTensor, Tensor
from osmosis_grpc.protocol.types.tokens import Ids, Logprobs, TokenBlock, VersionSpan

__all__ = [
    "AbandonReason",
    "Activity",
    "Annotation",
    "Callback",
    "CallbackTls",
    "CancelResult",
    "Capacity",
    "Cause",
    "ChatPurpose",
    "ChatRef",
    "ChatRequest",
    "ChatResponse",
    "ChatReward",
    "EarlierRun",
    "EndedBy",
    "EventKind",
    "Extra",
    "Extras",
    "Failure",
    "FailureReason",
    "Fork",
    "Group",
    "Ids",
    "InitRequest",
    "JournaledRollout",
    "Logprobs",
    "Message",
    "OutcomeStatus",
    "OutcomeSummary",
    "PrefixChat",
    "RaggedTensor",
    "Receipt",
    "RolloutFilter",
    "RolloutInfo",
    "RolloutMetrics",
    "RolloutOutcome",
    "RolloutRequest",
    "RolloutState",
    "Sample",
    "SampledChat",
    "Segment",
    "SegmentAnnotation",
    "SplitReason",
    "StackFrame",
    "Tensor",
    "TokenBlock",
    "ToolDict",
    "TraceContext",
    "TrajectoryEvent",
    "VersionSpan",
]
