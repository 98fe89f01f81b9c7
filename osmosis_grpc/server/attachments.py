"""All attachments of a server: hellos, who replaces whom, everybody's share, the grace period."""

import asyncio
import logging
from functools import partial
from typing import Any

from osmosis_grpc import __version__
from osmosis_grpc._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc._gen.osmosis.rollout.v1 import services_pb2
from osmosis_grpc.engine import Engine, Peer
from osmosis_grpc.errors import CallError, ResourceExhausted, Unauthenticated
from osmosis_grpc.link.credentials import Access
from osmosis_grpc.link.options import MAX_MESSAGE_BYTES
from osmosis_grpc.link.stream import Dialled, Duplex, FrameStream, redial
from osmosis_grpc.server.attachment import Attachment
from osmosis_grpc.supervise import OnFailure, job
from osmosis_grpc.types.completion import clip, describe
from osmosis_grpc.wire.attach import check_trainer_hello, server_frame
from osmosis_grpc.wire.control import PROTOCOL, limits_to_wire

log = logging.getLogger(__name__)

DIAL = job("server.dial", OnFailure.RESTART)
GRACE = job("server.trainer_grace", OnFailure.RESTART)

MAX_ATTACHMENTS = 1024
ACCEPT = "/osmosis.rollout.v1.TrainerService/Accept"
_HEARTBEAT = server_frame("heartbeat", pb.Heartbeat())


class Attachments:
    """Made by the AgentServer, closed with it."""

    def __init__(self, engine: Engine, max_metadata_bytes: int) -> None:
        self._engine = engine
        self._max_metadata = max_metadata_bytes
        self._attachments: dict[str, Attachment] = {}
        self._graces: dict[str, asyncio.Task[None]] = {}
        self._dialling: list[asyncio.Task[None]] = []

    async def attach(self, call: Duplex, owner: str, address: str = "") -> None:
        """A trainer has opened a stream: live on it until it ends. Raises the CallError that it ends with.

        `address` is the trainer's, for the log.
        """
        stream = FrameStream(call, _HEARTBEAT, waits=False)
        hello = await stream.hello(opener=True)
        attachment = self._claim(hello, owner)
        granted = self._share(joining=attachment)
        stream.send(server_frame("hello", self._hello(attachment.attachment_id, granted)))
        error = await self._live(attachment, stream, hello, granted, address)
        if error is not None:
            raise error

    def dial(self, target: str, access: Access | None = None) -> None:
        """Open a stream to a trainer, and open it again whenever it ends."""

        async def connect() -> CallError | None:
            async with Dialled(target, ACCEPT, services_pb2.AcceptResponse, access or Access()) as call:
                stream = FrameStream(call, _HEARTBEAT, waits=False)
                granted = self._share()
                await stream.greet(server_frame("hello", self._hello("", granted)))
                hello = await stream.hello(opener=False)
                attachment = self._claim(hello, f"trainer at {target}")
                return await self._live(attachment, stream, hello, granted, target)

        def told(error: CallError | None, pause: float) -> None:
            if self._engine.shutdown.closing:
                return
            log.warning("the trainer at %s: %s; trying again within %g s", target, error or "it left", pause)

        self._dialling.append(self._engine.supervisor.start(DIAL, partial(redial, connect, told)))

    def expect(self, attachment_id: str, owner: str) -> Peer:
        """A trainer whose rollouts another process left: it has the grace period to come back."""
        attachment = self._attachments.get(attachment_id)
        if attachment is None:
            attachment = Attachment(attachment_id, owner, self._engine, self._max_metadata)
            self._attachments[attachment_id] = attachment
            self._wait_for(attachment)
        return attachment.peer

    def drain(self) -> None:
        """No new rollouts from now on."""
        self._grant()
        for attachment in self._open():
            attachment.tell_draining()

    async def close(self) -> None:
        """Say so, and let the streams end."""
        parked = self._engine.shutdown.parked
        for attachment in self._open():
            attachment.tell_draining(last=True, kept=[r for r in parked if r.peer is attachment.peer])
        for timer in self._graces.values():
            timer.cancel()
        if self._open():
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
        try:
            attachment.take(stream, hello, granted=granted)
            self._grant()
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
        if attachment is None:
            if len(self._attachments) >= MAX_ATTACHMENTS:
                raise ResourceExhausted(f"there are {MAX_ATTACHMENTS} attachments", retry_after=5.0)
            attachment = Attachment(hello.attachment_id, owner, self._engine, self._max_metadata)
            self._attachments[hello.attachment_id] = attachment
        return attachment

    def _left(self, attachment: Attachment) -> None:
        """A stream has ended and no other has begun: wait for the trainer, then give its rollouts up."""
        if attachment.needed and not self._engine.shutdown.closing:
            self._wait_for(attachment)
        else:
            self._attachments.pop(attachment.attachment_id, None)
        self._grant()

    def _wait_for(self, attachment: Attachment) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + self._engine.config.trainer_grace

        async def wait() -> None:
            await asyncio.sleep(max(0.0, until - clock()))
            self._give_up(attachment)

        self._graces[attachment.attachment_id] = self._engine.supervisor.start(GRACE, wait)

    def _give_up(self, attachment: Attachment) -> None:
        if attachment.attached:
            return
        if attachment.tenant.open:
            grace = self._engine.config.trainer_grace
            log.warning("a trainer was away for %g s: its %d rollouts end", grace, attachment.tenant.open)
            self._engine.lose(attachment.tenant, grace)
        self._graces.pop(attachment.attachment_id, None)
        self._left(attachment)

    def _open(self) -> list[Attachment]:
        return [attachment for attachment in self._attachments.values() if attachment.attached]

    def _share(self, joining: Attachment | None = None) -> int:
        """How many rollouts each attachment may have open, one more of them counted."""
        others = sum(attachment is not joining for attachment in self._open())
        return self._window(others + 1)

    def _window(self, parts: int) -> int:
        if self._engine.shutdown.draining:
            return 0
        config = self._engine.config
        return max(1, (config.max_concurrent + config.queue_limit) // parts)

    def _grant(self) -> None:
        attached = self._open()
        for attachment in attached:
            attachment.grant(self._window(len(attached)))

    def _hello(self, attachment_id: str, window: int) -> pb.ServerHello:
        engine = self._engine
        return pb.ServerHello(
            attachment_id=attachment_id, process_uuid=engine.provenance.process_uuid,
            journal_id=engine.log.store.journal_id,
            version=__version__, protocol_min=PROTOCOL[0], protocol_max=PROTOCOL[1], max_open_rollouts=window,
            limits=limits_to_wire(MAX_MESSAGE_BYTES, self._max_metadata, self._engine.config.agent_timeout),
            agent_loops=sorted(engine.agent_loops), draining=engine.shutdown.draining,
        )  # fmt: skip
