"""The trainer's side: start rollouts, answer their chats, receive their completions.

Over one stream to each agent server:

    async with attach(["127.0.0.1:50051"], policy) as trainer:
        completion = await trainer.rollout(rollout_id="r1", messages=messages)
        async for group in trainer.groups(requests, group_size=8):
            batch = pad(group, advantages=advantages(group))

without async code:

    with SyncTrainer(["127.0.0.1:50051"], policy) as trainer:
        completion = trainer.rollout(rollout_id="r1", messages=messages)

or by callbacks:

    async with TrainerServer(policy) as trainer, RolloutClient("127.0.0.1:50051") as client:
        await client.init(rollout_id="r1", messages=messages, callback=trainer.callback())
        completion = await trainer.completion("r1")
"""

from osmosis_grpc.trainer import grpc_log_level  # noqa: F401 - before anything imports grpc

# isort: split
from osmosis_grpc.link.tls import ClientTls, ServerTls
from osmosis_grpc.policies import Policy
from osmosis_grpc.trainer.advantage import Advantages, advantages
from osmosis_grpc.trainer.batch import Batch, Row, Skipped, pad
from osmosis_grpc.trainer.client import InitResult, RolloutClient
from osmosis_grpc.trainer.evaluate import Evaluation
from osmosis_grpc.trainer.groups import GroupCounts, OutcomeGroup
from osmosis_grpc.trainer.server import TrainerServer
from osmosis_grpc.trainer.servers import Server
from osmosis_grpc.trainer.sync import SyncTrainer
from osmosis_grpc.trainer.trainer import Trainer, attach
from osmosis_grpc.types import (
    Callback,
    CallbackTls,
    CancelResult,
    ChatRequest,
    ChatResponse,
    Completion,
    FailureReason,
    Group,
    RolloutRequest,
    TokenBlock,
    TrajectoryEvent,
    VersionSpan,
)

__all__ = [
    "Advantages",
    "Batch",
    "Callback",
    "CallbackTls",
    "CancelResult",
    "ChatRequest",
    "ChatResponse",
    "ClientTls",
    "Completion",
    "Evaluation",
    "FailureReason",
    "Group",
    "GroupCounts",
    "InitResult",
    "OutcomeGroup",
    "Policy",
    "RolloutClient",
    "RolloutRequest",
    "Row",
    "Server",
    "ServerTls",
    "Skipped",
    "SyncTrainer",
    "TokenBlock",
    "Trainer",
    "TrainerServer",
    "TrajectoryEvent",
    "VersionSpan",
    "advantages",
    "attach",
    "pad",
]
