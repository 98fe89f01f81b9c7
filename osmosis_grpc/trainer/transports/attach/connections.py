"""The attach transport: the trainer opens streams to its servers, and other servers can open streams to the trainer."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any

import grpc

from osmosis_grpc.network.channel_options import client_options
from osmosis_grpc.network.dialled_stream import DialledStream
from osmosis_grpc.network.frame_stream import FrameStream
from osmosis_grpc.network.handlers import Registrar
from osmosis_grpc.network.network import start
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, control_pb2, services_pb2, services_pb2_grpc
from osmosis_grpc.protocol.errors import (
    CallError,
    FailedPrecondition,
    ResourceExhausted,
    Unauthenticated,
    Unimplemented,
)
from osmosis_grpc.protocol.types.outcome import clip
from osmosis_grpc.protocol.wire.attach import check_protocol, trainer_frame
from osmosis_grpc.storage.ledger import LedgerRollout
from osmosis_grpc.supervise import OnFailure, job
from osmosis_grpc.trainer.target_sources import Target
from osmosis_grpc.trainer.transports.attach.link import AttachedServer
from osmosis_grpc.trainer.transports.calls import Calls
from osmosis_grpc.trainer.transports.transport import Dialled, Transport

log = logging.getLogger(__name__)

ATTACH = "/osmosis.rollout.v1.RolloutService/Attach"
JOURNAL = "journal "
"""The prefix of the ledger's key for a server that opens the stream itself."""
MAX_DIALLED = 1024
"""At most this many agent servers may open streams to this trainer."""
MAX_WORKERS = 1024
"""At most this many workers of one server are used."""
SHORTEST_HEARTBEAT = 0.1
"""The shortest heartbeat interval, in seconds, even if the server asks for a shorter one."""
ASK_WORKERS = job("trainer.ask_workers", OnFailure.RESTART)
_HEARTBEAT = trainer_frame("heartbeat", attach_pb2.Heartbeat())


class AttachTransport(Transport[AttachedServer], services_pb2_grpc.TrainerServiceServicer):
    """The streams of one trainer. Agent servers can open streams with the RPC Accept."""

    _server: grpc.aio.Server | None = None
    _asking: "asyncio.Task[None] | None" = None

    @cached_property
    def _stream_numbers(self) -> Iterator[int]:
        """The numbers of the streams, in the order in which they are opened: the process in the ledger, and a count.

        A hello can be so late that it arrives after that of a later stream, even of a later process. By the number the
        server knows which stream is newer. Without a ledger, each process has attachments of its own.
        """
        ledger = self._scheduler.ledger
        return itertools.count((ledger.process_number << 32 if ledger is not None else 0) + 1)

    def listen(self) -> None:
        if not self.address:
            return
        self._server = self._network.server(max_age=self._config.max_connection_age)
        self._scheduler.servers.more_may_come = True
        guard = self._guard = self._security.authenticator()
        calls = self._scheduler.cache.metrics.answered_calls
        services: Any = Registrar(self._server, guard, calls, new_id=self._scheduler.supervisor.system.new_id)
        services_pb2_grpc.add_TrainerServiceServicer_to_server(self, services)
        self.address = self._network.listen(self._server, self.address, self._security)

    def add_servers(self, kept: Iterable[LedgerRollout]) -> None:
        """Add the servers of the sources, and the servers in the ledger that opened their stream themselves."""
        super().add_servers(kept)
        if self._server is not None:
            rows = [row for row in kept if row.init is not None and row.server_key.startswith(JOURNAL)]
            self._scheduler.servers.add(*(self._made(key, key) for key in {row.server_key: None for row in rows}))

    def _link(self, target: Target, server_key: str) -> AttachedServer:
        return self._made(target.address, server_key)

    def _made(self, name: str, server_key: str) -> AttachedServer:
        return AttachedServer(name, self._scheduler, server_key=server_key, delta=self._config.delta)

    async def begin(self) -> None:
        if self._server is not None:
            await start(self._server)
        await super().begin()

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        await super().close()
        if self._server is not None:
            await self._server.stop(0.25)

    async def Chat(self, request: Any, context: Any) -> Any:
        raise Unimplemented('this trainer takes attachments; Trainer(..., transport="callback") takes callbacks')

    Complete = Chat

    async def Accept(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        """Serve the stream that an agent server opens. Raises CallError if the server is refused."""
        servers, peer = self._scheduler.servers, context.peer()
        credential = self._guard(context) if self._guard is not None else ""
        stream = FrameStream(context, _HEARTBEAT, waits=True)
        hello = await stream.hello(opener=True)
        check_protocol(hello)
        attached = (server for server in servers if isinstance(server, AttachedServer))
        known = next((s for s in attached if hello.journal_id and s.identity.journal_id == hello.journal_id), None)
        if known is None and len(servers) >= MAX_DIALLED + len(self._dialled) and not servers.drop_one():
            raise ResourceExhausted(f"{MAX_DIALLED} agent servers have dialled in", retry_after=10.0)
        if known is not None and known.credential != credential:
            raise Unauthenticated("the journal belongs to another credential")
        if known is not None:
            _check_same_process(known, hello, peer)
        server = known or self._made(peer, f"{JOURNAL}{hello.journal_id}" if hello.journal_id else "")
        server.name, server.credential = peer, credential
        granted = servers.share(server)
        stream.send(server.greeting(granted, next(self._stream_numbers)))
        error = await self._live(server, stream, hello, granted)
        if error is not None:
            raise error

    async def _connect(self, server: Dialled[AttachedServer], on_answer: Callable[[], None]) -> CallError | None:
        calls, credentials = self._scheduler.cache.metrics.made_calls, self._credentials_for(server.target)
        answers, link = services_pb2.AttachResponse, server.link
        async with DialledStream(link.name, ATTACH, answers, credentials, calls, self._network) as call:
            stream = FrameStream(call, _HEARTBEAT, waits=True)
            granted = self._scheduler.servers.share(link)
            await stream.greet(link.greeting(granted, next(self._stream_numbers)))
            hello = await stream.hello(opener=False)
            on_answer()
            self._name_workers(server, _other_workers(server.target.address, hello))
            return await self._live(link, stream, hello, granted)

    def _not_reached(self, server: Dialled[AttachedServer]) -> None:
        """If a worker cannot be reached, ask the server that named it for its workers: it may no longer exist.

        Otherwise only the hello of the next stream lists the workers, and the trainer would try this one until then.
        """
        naming = [self._dialled[each] for each, workers in self._workers.items() if server.target.address in workers]
        attached = [each for each in naming if each.link.attached]
        if attached and (self._asking is None or self._asking.done()):
            self._asking = self._scheduler.supervisor.start(ASK_WORKERS, partial(self._ask_workers, attached[0]))

    async def _ask_workers(self, server: Dialled[AttachedServer]) -> None:
        credentials = self._credentials_for(server.target)
        calls = Calls(credentials, self._scheduler.cache.metrics.made_calls)
        try:
            channel = self._network.channel(server.link.name, credentials.tls, client_options(grpc__enable_retries=0))
        except ValueError:  # a TLS file cannot be read now
            return
        calls.channel = channel
        try:
            info = await calls.ask(
                "GetServerInfo", control_pb2.GetServerInfoRequest(), control_pb2.GetServerInfoResponse
            )
        except CallError:  # the next attempt to reach the worker repeats this call
            return
        finally:
            await channel.close()
        self._name_workers(server, _other_workers(server.target.address, info))

    async def _live(
        self, server: AttachedServer, stream: FrameStream, hello: attach_pb2.ServerHello, granted: int
    ) -> CallError | None:
        check_protocol(hello)
        _pace(stream, hello.limits)
        problem: CallError | None = None
        loops, version = ", ".join(hello.agent_loops), hello.version
        try:
            server.take(stream, hello, granted=granted)
            self._scheduler.servers.arrived(server)
            self._scheduler.changed()
            log.info(
                "attached to server %s: agent loops %r, version %r", server.name, clip(loops, 300), clip(version, 64)
            )
            problem = await stream.run(server.handlers)
        except CallError as error:
            problem = error
            raise
        finally:
            server.leave(stream, problem)
            self._scheduler.servers.left(server)
        return problem


def _pace(stream: FrameStream, limits: control_pb2.Limits) -> None:
    """Set the heartbeat interval and timeout from the server's limits. Unless both are set, the defaults remain."""
    interval = limits.heartbeat_interval.ToTimedelta().total_seconds()
    timeout = limits.heartbeat_timeout.ToTimedelta().total_seconds()
    if interval > 0 and timeout > 0:
        stream.pace(max(interval, SHORTEST_HEARTBEAT), max(timeout, SHORTEST_HEARTBEAT))


def _other_workers(address: str, hello: attach_pb2.ServerHello | control_pb2.GetServerInfoResponse) -> list[str]:
    """Return the addresses of the other workers that a server names. They have the same host as the server."""
    host, _, own = address.rpartition(":")
    rows = hello.workers[:MAX_WORKERS]
    others = [row for row in rows if 0 < row.port < 65_536 and str(row.port) != own]
    return [f"{host}:{row.port}" for row in others if not row.journal_id or row.journal_id != hello.journal_id]


def _check_same_process(known: AttachedServer, hello: attach_pb2.ServerHello, peer: str) -> None:
    """Raise FailedPrecondition if another process with the same journal is attached.

    A restarted server is also another process. It is refused until the stream of the old process has ended, which
    happens when the old process ends, or when the stream has been silent for too long.
    """
    if known.attached and known.identity.process_id != hello.process_id:
        log.warning("the agent server at %s is refused: the one at %s has the same journal", peer, known.name)
        raise FailedPrecondition(
            f"journal {clip(hello.journal_id, 64)} is in use by another agent server, at {known.name}: a copy of a "
            "journal is not a journal of its own; start this server with another --state-dir",
            kind="JOURNAL",
            subject=clip(hello.journal_id, 64),
        )
