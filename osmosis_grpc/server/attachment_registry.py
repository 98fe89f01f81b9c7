"""All attachments of a server: hellos, replaced streams, windows, and the grace period."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from osmosis_grpc import __version__
from osmosis_grpc.engine import Engine, Peer
from osmosis_grpc.engine.fair_shares import Shares
from osmosis_grpc.network.channel_options import MAX_MESSAGE_BYTES, MAX_REPLY_BYTES, MIN_PING_INTERVAL
from osmosis_grpc.network.client_calls import CallSink
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.dialled_stream import DialledStream, redial
from osmosis_grpc.network.frame_stream import Duplex, FrameStream
from osmosis_grpc.network.network import GRPC, Network
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2
from osmosis_grpc.protocol.errors import Aborted, CallError, ResourceExhausted, Unauthenticated
from osmosis_grpc.protocol.types.outcome import clip, describe
from osmosis_grpc.protocol.types.server_info import ServerLimits, Worker
from osmosis_grpc.protocol.wire.attach import check_trainer_hello, server_frame
from osmosis_grpc.protocol.wire.control import FEATURES, LIMITS, PROTOCOL, WORKER
from osmosis_grpc.server.attachment import Attachment
from osmosis_grpc.supervise import OnFailure, job

log = logging.getLogger(__name__)

DIAL = job("server.dial", OnFailure.RESTART)
GRACE = job("server.trainer_grace", OnFailure.RESTART)

MAX_ATTACHMENTS = 1024
"""The most attachments of the server, shared between the owners by engine/fair_shares.py."""
ACCEPT = "/osmosis.rollout.v1.TrainerService/Accept"
_HEARTBEAT = server_frame("heartbeat", pb.Heartbeat())


class Attachments:
    """Creates, finds and drops attachments."""

    def __init__(self, engine: Engine, max_metadata_bytes: int, network: Network = GRPC) -> None:
        self._engine = engine
        self._max_metadata = max_metadata_bytes
        self._network = network
        self._attachments: dict[str, Attachment] = {}
        self._held = Shares(MAX_ATTACHMENTS, engine.config.max_attachments_per_owner)
        """The number of attachments of each owner."""
        self.calls: CallSink | None = None
        """Counts the streams that are opened to trainers."""
        self.workers: Callable[[], Sequence[Worker]] = tuple
        """Returns the workers of this server; none if it is one process."""
        self._graces: dict[str, asyncio.Task[None]] = {}
        self._dialling: list[asyncio.Task[None]] = []

    async def attach(self, call: Duplex, owner: str, address: str = "") -> None:
        """Serve a stream that a trainer has opened, until the stream ends. Raises the CallError that ends the stream.

        `address` is the address of the trainer, for the log.
        """
        stream = FrameStream(call, _HEARTBEAT, waits=False)
        hello = await stream.hello(opener=True)
        attachment = self._claim(hello, owner)
        granted = self._share(owner, joining=attachment)
        stream.send(server_frame("hello", self._hello(attachment.attachment_id, granted, self.workers())))
        error = await self._live(attachment, stream, hello, granted, address)
        if error is not None:
            raise error

    def dial(self, target: str, credentials: Credentials | None = None) -> None:
        """Open a stream to a trainer, and open it again whenever it ends."""
        owner = f"trainer at {target}"

        async def connect() -> CallError | None:
            async with DialledStream(
                target, ACCEPT, services_pb2.AcceptResponse, credentials or Credentials(), self.calls, self._network
            ) as call:
                stream = FrameStream(call, _HEARTBEAT, waits=False)
                granted = self._share(owner)
                await stream.greet(server_frame("hello", self._hello("", granted)))
                hello = await stream.hello(opener=False)
                attachment = self._claim(hello, owner)
                return await self._live(attachment, stream, hello, granted, target)

        def ended(error: CallError | None, pause: float) -> None:
            if self._engine.shutdown.closing:
                return
            log.warning("the trainer at %s: %s; trying again within %g s", target, error or "it left", pause)

        self._dialling.append(
            self._engine.supervisor.start(DIAL, partial(redial, connect, ended, system=self._engine.supervisor.system))
        )

    def expect(self, attachment_id: str, owner: str) -> Peer:
        """Return the peer for a trainer whose rollouts the previous process ran, and begin its grace period."""
        attachment = self._attachments.get(attachment_id)
        if attachment is None:
            attachment = self._add(attachment_id, owner)
            self._wait_for(attachment)
        return attachment.peer

    def get(self, attachment_id: str) -> Attachment | None:
        """Return the attachment if it is open or within its grace period, else None."""
        return self._attachments.get(attachment_id)

    def drain(self) -> None:
        """Set all windows to 0, and tell all trainers that the server drains."""
        self.grant()
        for attachment in self.attached:
            attachment.notify_draining()

    async def close(self) -> None:
        """Tell all trainers that the server ends, and end their streams."""
        parked = self._engine.shutdown.parked
        for attachment in self.attached:
            attachment.say_goodbye([record for record in parked if record.peer is attachment.peer])
        for timer in self._graces.values():
            timer.cancel()
        if self.attached:
            await asyncio.sleep(0.05)
        for task in self._dialling:
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)

    async def _live(
        self, attachment: Attachment, stream: FrameStream, hello: pb.TrainerHello, granted: int, address: str
    ) -> CallError | None:
        trainer = {"trainer": address, "owner": attachment.owner}
        problem: BaseException | None = None
        grace = self._graces.pop(attachment.attachment_id, None)
        if grace is not None:
            grace.cancel()
        config = self._engine.config
        stream.pace(config.heartbeat_interval, config.heartbeat_timeout)
        try:
            attachment.take(stream, hello, granted=granted)
            attachment.address, attachment.version = address, clip(hello.version, 64)
            attachment.since = self._engine.context.system.time()
            self.grant()
            log.info("a trainer attached", extra={**trainer, "version": clip(hello.version, 64)})
            problem = await stream.run(attachment.handlers)
            return problem
        except CallError as error:
            problem = error
            raise
        finally:
            attachment.leave(stream)
            if not attachment.attached:
                why = "it left" if problem is None else clip(describe(problem), 300)
                log.info("a trainer went away", extra={**trainer, "unfinished": attachment.tenant.open, "why": why})
                self._left(attachment)

    def _claim(self, hello: Any, owner: str) -> Attachment:
        check_trainer_hello(hello)
        attachment = self._attachments.get(hello.attachment_id)
        if attachment is not None and attachment.owner != owner:
            raise Unauthenticated("the attachment belongs to another credential")
        # This hello is late: the trainer has given the stream up, or was killed and has started again. If this stream
        # replaced the newer one, the newer one would get ABORTED, and the trainer would never attach again.
        if attachment is not None and attachment.has_newer_stream_than(hello.stream_number):
            raise Aborted("a newer stream with the same attachment id is attached", reason="ATTACHMENT_REPLACED")
        if attachment is None:
            if not self._held.available(owner):
                raise ResourceExhausted(
                    f"there are {self._held.total} attachments, {self._held.used(owner)} of them this owner's",
                    retry_after=5.0,
                )
            attachment = self._add(hello.attachment_id, owner)
        return attachment

    def _add(self, attachment_id: str, owner: str) -> Attachment:
        attachment = Attachment(attachment_id, owner, self._engine, self._max_metadata)
        self._attachments[attachment_id] = attachment
        self._held.add(owner, 1)
        return attachment

    def _left(self, attachment: Attachment) -> None:
        """Begin the grace period of a trainer without a stream, or drop its attachment if it has no work."""
        if attachment.done and attachment.tenant.open:
            self._engine.lose(attachment.tenant, "the trainer said goodbye")
        if attachment.needed and not self._engine.shutdown.closing:
            self._wait_for(attachment)
        elif self._attachments.pop(attachment.attachment_id, None) is not None:
            self._held.add(attachment.owner, -1)
        self.grant()

    def _wait_for(self, attachment: Attachment) -> None:
        clock, grace = asyncio.get_running_loop().time, self._engine.config.trainer_grace
        until = clock() + grace

        async def wait() -> None:
            await asyncio.sleep(max(0.0, until - clock()))
            if attachment.attached:
                return
            if attachment.tenant.open:
                log.warning("a trainer was away for %g s: its %d rollouts end", grace, attachment.tenant.open)
                self._engine.lose(attachment.tenant, f"the trainer was away for {grace:g} s")
            self._graces.pop(attachment.attachment_id, None)
            self._left(attachment)

        self._graces[attachment.attachment_id] = self._engine.supervisor.start(GRACE, wait)

    @property
    def attached(self) -> list[Attachment]:
        """The trainers that are attached now."""
        return [attachment for attachment in self._attachments.values() if attachment.attached]

    def _share(self, owner: str, joining: Attachment | None = None) -> int:
        attached = Counter(attachment.owner for attachment in self.attached if attachment is not joining)
        attached[owner] += 1
        return self._window(attached, owner)

    def _window(self, attached: Mapping[str, int], owner: str) -> int:
        """Return the window of one attachment: its owner's share of the server, divided by the owner's attachments.

        During a drain, return 0.
        """
        if self._engine.shutdown.draining:
            return 0
        config = self._engine.config
        return max(1, (config.max_concurrent + config.queue_limit) // len(attached) // attached[owner])

    def grant(self) -> None:
        """Send each trainer its window, if the window has changed."""
        owners = Counter(attachment.owner for attachment in self.attached)
        for attachment in self.attached:
            attachment.grant(self._window(owners, attachment.owner))

    def limits(self) -> ServerLimits:
        """Return the bounds that the server sets."""
        config = self._engine.config
        return ServerLimits(
            max_message_bytes=MAX_MESSAGE_BYTES,
            max_metadata_bytes=self._max_metadata,
            agent_timeout=config.agent_timeout,
            max_sent_bytes=MAX_MESSAGE_BYTES,
            max_reply_bytes=MAX_REPLY_BYTES,
            outcome_ttl=config.record_ttl,
            trainer_grace=config.trainer_grace,
            chat_silence=config.chat_silence,
            chat_retry_min=config.retry_delay[0],
            chat_retry_max=config.retry_delay[1],
            outcome_retry_min=config.outbox_delay[0],
            outcome_retry_max=config.outbox_delay[1],
            heartbeat_interval=config.heartbeat_interval,
            heartbeat_timeout=config.heartbeat_timeout,
            min_ping_interval=MIN_PING_INTERVAL,
        )

    def _hello(self, attachment_id: str, window: int, workers: Sequence[Worker] = ()) -> pb.ServerHello:
        """Return the hello. Pass no workers for a stream that this process opens: each worker opens its own."""
        engine = self._engine
        return pb.ServerHello(
            attachment_id=attachment_id,
            process_id=engine.context.earlier_runs.process_id,
            journal_id=engine.journal.journal_id,
            version=__version__,
            protocol_min=PROTOCOL[0],
            protocol_max=PROTOCOL[1],
            max_open_rollouts=window,
            limits=LIMITS.to_wire(self.limits()),
            agent_loops=sorted(engine.context.runnables),
            features=FEATURES,
            draining=engine.shutdown.draining,
            workers=[WORKER.to_wire(worker) for worker in workers],
        )
