"""The trainer's side: start rollouts, answer their chats, receive their outcomes.

Over one stream to each agent server:

    async with Trainer(["127.0.0.1:50051"], policy) as trainer:
        outcome = await trainer.rollout(rollout_id="r1", messages=messages)
        async for group in trainer.groups(requests, group_size=8):
            batch = pad(group, advantages=advantages(group))

without async code:

    with SyncTrainer(["127.0.0.1:50051"], policy) as trainer:
        outcome = trainer.rollout(rollout_id="r1", messages=messages)

or by callbacks, for networks that allow no streams:

    async with Trainer(["127.0.0.1:50051"], policy, transport="callback", listen="0.0.0.0:60051") as trainer:
        outcome = await trainer.rollout(rollout_id="r1", messages=messages)

The names in _MODULES are imported on first use, because some programs need only RolloutClient.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from osmosis_grpc.network import grpc_variables  # noqa: F401 - before anything imports grpc

# isort: split
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.network.tls import ClientTls, ServerTls
from osmosis_grpc.protocol.errors import (
    Aborted,
    AlreadyExists,
    CallError,
    ContextLengthExceeded,
    FailedPrecondition,
    InvalidArgument,
    LedgerError,
    MissingExtraError,
    NotFound,
    PermissionDenied,
    RolloutFailed,
    Superseded,
    TrainerFailed,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from osmosis_grpc.protocol.types import (
    Annotation,
    Callback,
    CallbackTls,
    CancelResult,
    ChatRequest,
    ChatResponse,
    FailureReason,
    Fork,
    Group,
    RaggedTensor,
    RolloutOutcome,
    RolloutRequest,
    SegmentAnnotation,
    Tensor,
    TokenBlock,
    TrajectoryEvent,
    VersionSpan,
)
from osmosis_grpc.protocol.types.server_info import DrainResult, ServerInfo
from osmosis_grpc.trainer.rollout_client import InitResult, RolloutClient

if TYPE_CHECKING:
    from osmosis_grpc.policies import Policy
    from osmosis_grpc.records.export import Row, Skipped
    from osmosis_grpc.trainer.advantage import Advantages, advantages
    from osmosis_grpc.trainer.batch import Batch, pad
    from osmosis_grpc.trainer.config import TrainerConfig
    from osmosis_grpc.trainer.evaluation import Evaluation
    from osmosis_grpc.trainer.groups import GroupCounts, OutcomeGroup
    from osmosis_grpc.trainer.metrics import version_lag
    from osmosis_grpc.trainer.server_availability import Server
    from osmosis_grpc.trainer.sync import SyncTrainer
    from osmosis_grpc.trainer.task_sampler import TaskRecord, TaskSampler
    from osmosis_grpc.trainer.torch_batch import TorchBatch
    from osmosis_grpc.trainer.trainer import Trainer
    from osmosis_grpc.trainer.trainer_lifecycle import TransportName

__all__ = [
    "Aborted",
    "Advantages",
    "AlreadyExists",
    "Annotation",
    "Batch",
    "CallError",
    "Callback",
    "CallbackTls",
    "CancelResult",
    "ChatRequest",
    "ChatResponse",
    "ClientTls",
    "ContextLengthExceeded",
    "Credentials",
    "DrainResult",
    "Evaluation",
    "FailedPrecondition",
    "FailureReason",
    "Fork",
    "Group",
    "GroupCounts",
    "InitResult",
    "InvalidArgument",
    "LedgerError",
    "MissingExtraError",
    "NotFound",
    "OutcomeGroup",
    "PermissionDenied",
    "Policy",
    "RaggedTensor",
    "RolloutClient",
    "RolloutFailed",
    "RolloutOutcome",
    "RolloutRequest",
    "Row",
    "SegmentAnnotation",
    "Server",
    "ServerInfo",
    "ServerSecurity",
    "ServerTls",
    "Skipped",
    "Superseded",
    "SyncTrainer",
    "TaskRecord",
    "TaskSampler",
    "Tensor",
    "TokenBlock",
    "TorchBatch",
    "Trainer",
    "TrainerConfig",
    "TrainerFailed",
    "TrajectoryEvent",
    "TransportName",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "VersionSpan",
    "advantages",
    "pad",
    "version_lag",
]

_MODULES = {
    "Policy": "policies",
    "Advantages": "trainer.advantage",
    "advantages": "trainer.advantage",
    "Batch": "trainer.batch",
    "Row": "records.export",
    "Skipped": "records.export",
    "pad": "trainer.batch",
    "TrainerConfig": "trainer.config",
    "Evaluation": "trainer.evaluation",
    "GroupCounts": "trainer.groups",
    "OutcomeGroup": "trainer.groups",
    "Server": "trainer.server_availability",
    "SyncTrainer": "trainer.sync",
    "TaskRecord": "trainer.task_sampler",
    "TaskSampler": "trainer.task_sampler",
    "TorchBatch": "trainer.torch_batch",
    "Trainer": "trainer.trainer",
    "TransportName": "trainer.trainer_lifecycle",
    "version_lag": "trainer.metrics",
}


if not TYPE_CHECKING:  # otherwise a type checker would accept every name of the module

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"osmosis_grpc.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
