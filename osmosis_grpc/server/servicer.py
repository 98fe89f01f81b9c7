"""RolloutService: each method converts the request, calls the engine, and converts the result."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import nullcontext
from typing import Any, Protocol
from urllib.parse import unquote

from osmosis_grpc import __version__
from osmosis_grpc.engine import Engine
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2_grpc
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.annotation_pb2 import AnnotateRequest, AnnotateResponse
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.rollout_pb2 import InitRequest, InitResponse
from osmosis_grpc.protocol.types import ToolDict
from osmosis_grpc.protocol.types.requests import check_id
from osmosis_grpc.protocol.types.server_info import AgentLoopInfo, ServerInfo
from osmosis_grpc.protocol.wire import control as wire
from osmosis_grpc.protocol.wire.control import FEATURES
from osmosis_grpc.protocol.wire.rollout import ROLLOUT, check_size, init_from_wire
from osmosis_grpc.server import request_answers
from osmosis_grpc.server.attachment_registry import Attachments
from osmosis_grpc.server.callbacks import Callbacks
from osmosis_grpc.server.config import ServerConfig
from osmosis_grpc.server.request_answers import init_answer

MAX_PAGE_SIZE = 1000
LARGE_METADATA = 64 * 1024
"""Inits with more characters of metadata than this are read one at a time."""


class Access(Protocol):
    """Says who calls. ServerSecurity has these methods."""

    def authenticator(self) -> Callable[[Any], str] | None:
        """Return a function that maps a call's context to its owner, or None if all callers are one owner."""

    def check_admin(self, context: Any) -> None:
        """Raise PermissionDenied unless the caller is an administrator."""


class RolloutServicer(services_pb2_grpc.RolloutServiceServicer):
    """The engine's methods as RPCs.

    `tools` lists the tools of each agent, for GetServerInfo. `on_drain` begins a drain (True) or ends it (False).
    """

    def __init__(
        self,
        engine: Engine,
        callbacks: Callbacks,
        attachments: Attachments,
        security: Access,
        config: ServerConfig,
        *,
        tools: dict[str, list[ToolDict]],
        on_drain: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._callbacks = callbacks
        self._attachments = attachments
        self._max_metadata = config.max_metadata_bytes
        self._turn = asyncio.Lock()
        """Held while large metadata is read, so that other calls run between two such Inits."""
        self._tools = tools
        self._on_drain = on_drain
        self._owner: Callable[[Any], str] = security.authenticator() or (lambda context: "")
        self._check_admin = security.check_admin
        self._start_time = engine.context.system.time()

    async def Init(self, request: InitRequest, context: Any) -> InitResponse:
        check_size(request, self._max_metadata)
        async with self._turn if len(request.spec.metadata_json) > LARGE_METADATA else nullcontext():
            init = init_from_wire(request)
        peer = await self._callbacks.peer(init)
        record, started = await self._engine.init(init, owner=self._owner(context), peer=peer)
        if record.delivery.outcome is not None and not started:
            self._engine.outbox.resend(record)
        return init_answer(record, started)

    async def Cancel(self, request: pb.CancelRequest, context: Any) -> pb.CancelResponse:
        response = request_answers.cancel(self._engine, self._owner(context), request)
        await self._engine.log.flush()
        return response

    async def GetRollout(self, request: pb.GetRolloutRequest, context: Any) -> pb.GetRolloutResponse:
        check_id(request.rollout_id, "rollout_id")
        record = self._engine.rollouts.get(self._owner(context), request.rollout_id, request.attempt)
        return pb.GetRolloutResponse(rollout=ROLLOUT.to_wire(await self._engine.rollouts.info(record)))

    async def ListRollouts(self, request: pb.ListRolloutsRequest, context: Any) -> pb.ListRolloutsResponse:
        rows, last = await self._engine.rollouts.page(
            self._owner(context),
            wire.parse_page_token(request.page_token),
            min(request.page_size or 100, MAX_PAGE_SIZE),
            wire.FILTER.from_wire(request),
            newest_first=request.newest_first,
        )
        page_token = str(last) if last else ""
        return pb.ListRolloutsResponse(rollouts=[ROLLOUT.to_wire(row) for row in rows], next_page_token=page_token)

    def StreamEvents(
        self, request: pb.StreamEventsRequest, context: Any
    ) -> AsyncGenerator[pb.StreamEventsResponse, None]:
        return request_answers.follow(self._engine, self._owner(context), request)

    async def Attach(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        peer = unquote(context.peer())  # such as ipv4:127.0.0.1:4711
        await self._attachments.attach(context, self._owner(context), peer.partition(":")[2] or peer)

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.GetServerInfoResponse:
        engine = self._engine
        info = ServerInfo(
            version=__version__,
            protocol_min=wire.PROTOCOL[0],
            protocol_max=wire.PROTOCOL[1],
            process_id=engine.context.earlier_runs.process_id,
            journal_id=engine.journal.journal_id,
            start_time=self._start_time,
            agent_loops=[
                AgentLoopInfo(name=name, tools=tools, version=engine.context.earlier_runs.versions.get(name, ""))
                for name, tools in sorted(self._tools.items())
            ],
            capacity=engine.capacity(),
            limits=self._attachments.limits(),
            draining=engine.shutdown.draining,
            features=FEATURES,
            current_time=engine.context.system.time(),
            workers=self._attachments.workers(),
        )
        return wire.SERVER_INFO.to_wire(info)

    async def Annotate(self, request: AnnotateRequest, context: Any) -> AnnotateResponse:
        return await request_answers.annotate(self._engine, self._owner(context), request)

    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainResponse:
        self._check_admin(context)
        await self._on_drain(not request.cancel)
        left = self._engine.capacity()
        return pb.DrainResponse(running=left.running, queued=left.queued, undelivered=left.undelivered)
