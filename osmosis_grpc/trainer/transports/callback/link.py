"""The trainer's link to one agent server by unary calls. The server calls the trainer back.

A ping every few seconds shows whether the server can be reached. When it is reached again after an interruption or a
restart, the link sends the Init of each of its rollouts again. If the server still has the rollout, the Init only
renews the callback. If the server has forgotten the rollout, the rollout runs again with a higher attempt.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from osmosis_grpc.network.channel_options import client_options
from osmosis_grpc.network.client_calls import cancellable, error_of
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.network import Network
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import annotation_pb2, control_pb2, rollout_pb2
from osmosis_grpc.protocol.errors import CallError, DeadlineExceeded, NotFound, Unavailable
from osmosis_grpc.protocol.types import Callback, CancelResult, InitRequest, TrajectoryEvent, events
from osmosis_grpc.protocol.wire.attach import check_protocol
from osmosis_grpc.protocol.wire.control import BLOBS, CANCEL_RESULT, features_from_wire
from osmosis_grpc.protocol.wire.event import event_from_wire, without_tokens
from osmosis_grpc.protocol.wire.rollout import init_to_wire
from osmosis_grpc.supervise import OnFailure, job
from osmosis_grpc.trainer.agent_server_link import (
    AgentServerLink,
    Rollout,
    RolloutKey,
    SchedulerPort,
    ServerIdentity,
    job_failed,
)
from osmosis_grpc.trainer.config import TrainerConfig
from osmosis_grpc.trainer.transports.calls import Answer, Calls, NoAnswer, raise_if_cancelled

log = logging.getLogger(__name__)

INIT = job("trainer.send_init", OnFailure.REPORT)
CANCEL = job("trainer.send_cancel", OnFailure.REPORT)
REPOINT = job("trainer.repoint_ended", OnFailure.RESTART)

PING_PERIOD = 5.0
"""The pause between two pings of a server, in seconds."""
PING_TIMEOUT = 10.0
STATE_PERIOD = 0.25
"""The seconds between two checks of the channel's state, which show whether the connection has ended."""
MAX_CALLS = 256
"""At most this many calls are open at one server: Inits, cancels and annotations together."""
RESEND_PAUSE = 1.0
"""If the server refuses an Init that renews a callback for now, it is sent again after this many seconds."""

Results = list[CancelResult]


class CalledServer(AgentServerLink):
    """The link to one agent server. The trainer calls the server, and the server calls the trainer."""

    def __init__(
        self,
        target: str,
        scheduler: SchedulerPort,
        *,
        server_key: str,
        credentials: Credentials,
        make_callback: Callable[[str, frozenset[str]], Callback],
        network: Network,
        config: TrainerConfig,
    ) -> None:
        super().__init__(target, scheduler, server_key=server_key)
        self._lost_after = config.lost_after
        self.credentials = credentials
        """The credentials of the next connection."""
        self._network = network
        self._make_callback = make_callback
        self._calls = Calls(credentials, self.cache.metrics.made_calls)
        self._slots = asyncio.Semaphore(MAX_CALLS)
        self._reached = asyncio.Event()
        self._in_doubt = asyncio.Event()
        """Set when a call got no answer, so that the next ping is sent at once."""
        self._pinging = False
        self._parting = asyncio.Event()
        self._sending: set[RolloutKey] = set()
        self._cancelling: set[RolloutKey] = set()
        self._cancels: dict[asyncio.Future[Results], asyncio.Task[None]] = {}
        self._repointing: asyncio.Task[None] | None = None
        self._streams: dict[Any, None] = {}
        """The open calls of events()."""
        self._closed: Exception | None = None

    @property
    def attached(self) -> bool:
        return self._reached.is_set()

    @property
    def idle(self) -> bool:
        return super().idle and not (self._cancels or self._streams)

    async def stay_connected(self, on_reached: Callable[[], None], on_left: Callable[[], None]) -> None:
        """Connect, call `on_reached`, and ping the server until a ping fails or part() is called.

        If the server was reached, call `on_left` at the end. Raises the CallError that ends the connection.
        """
        try:
            options = client_options(grpc__use_local_subchannel_pool=1, grpc__enable_retries=0)
            channel = self._network.channel(self.name, self.credentials.tls, options)
        except ValueError as error:
            raise Unavailable(str(error)) from None
        self._calls.channel = channel
        self._parting.clear()
        try:
            self._take(await self._ping())
            on_reached()
            while True:
                await self._pause(channel)
                if self._parting.is_set():
                    return
                info = await self._ping()
                if info.process_id != self.identity.process_id:
                    self._take(info)
                elif self.window != _window(info):
                    self.window = _window(info)
                else:
                    continue
                self.scheduler.changed()
        except NoAnswer as error:
            raise Unavailable(str(error)) from None
        finally:
            self._calls.channel = None
            if self.attached:
                self._reached.clear()
                on_left()
            await channel.close()

    async def _ping(self) -> control_pb2.GetServerInfoResponse:
        self._in_doubt.clear()
        self._pinging = True
        try:
            request, answer = control_pb2.GetServerInfoRequest(), control_pb2.GetServerInfoResponse
            return await self._calls.ask("GetServerInfo", request, answer, PING_TIMEOUT)
        finally:
            self._pinging = False

    async def _pause(self, channel: grpc.aio.Channel) -> None:
        """Wait until the next ping is due: after PING_PERIOD, or when a call gets no answer or the channel fails."""
        left = PING_PERIOD
        while left > 0 and channel.get_state() is grpc.ChannelConnectivity.READY:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STATE_PERIOD):
                    await self._in_doubt.wait()
                return
            left -= STATE_PERIOD

    def _take(self, info: control_pb2.GetServerInfoResponse) -> None:
        """Use a server that was reached. Send the Inits and cancels again that it may lack."""
        check_protocol(info)
        loops = tuple(loop.name for loop in info.agent_loops)
        self.identify(ServerIdentity(info.journal_id, info.process_id, info.version, loops))
        self.features = features_from_wire(info.features)
        self.window = _window(info)
        self._closed = None
        self._reached.set()
        self.cancel_leaving()
        for rollout in list(self.rollouts.values()):
            self.send_init(rollout)
        if self.ledger is not None:
            if self._repointing is not None:
                self._repointing.cancel()
            self._repointing = self.scheduler.supervisor.start(REPOINT, self._repoint_ended)

    def send_init(self, rollout: Rollout) -> None:
        key = rollout.key
        if not self.attached or not rollout.written or key in self._sending:
            return
        self._sending.add(key)

        def fail(error: BaseException) -> None:
            self.release(rollout)
            self.scheduler.refused(rollout, job_failed(INIT, error))

        task = self.scheduler.supervisor.start(INIT, partial(self._send_init, rollout, key), fail)
        task.add_done_callback(lambda _: self._sending.discard(key))

    async def _init(self, init: InitRequest) -> rollout_pb2.InitResponse:
        return await self._calls.ask("Init", init_to_wire(init, blobs=BLOBS in self.features), rollout_pb2.InitResponse)

    async def _send_init(self, rollout: Rollout, key: RolloutKey) -> None:
        """Send an Init until the server answers, or the link is closed.

        The rollout's worker can be away although the server answers. After `lost_after` seconds, the rollout counts as
        lost. If the worker comes back later, the attempt is cancelled there.
        """
        monotonic = self.scheduler.supervisor.system.monotonic
        away_since: float | None = None
        async with self._slots:
            while self.rollouts.get(key) is rollout:
                try:
                    if rollout.opened and not await self._knows(key):
                        log.warning("server %s has forgotten rollout %s; the rollout runs again", self.name, key[0])
                        self.scheduler.lost(rollout, f"server {self.name} has forgotten it")
                        return
                    callback = self._make_callback(key[0], self.features)
                    init = InitRequest(request=rollout.request, callback=callback, trace=rollout.trace)
                    answer = await self._init(init)
                except (NoAnswer, DeadlineExceeded) as error:  # the server or one of its workers may have the rollout
                    if isinstance(error, NoAnswer):
                        away_since = None
                    else:
                        away_since = away_since or monotonic()
                        if monotonic() - away_since > self._lost_after and self.rollouts.get(key) is rollout:
                            why = f"server {self.name} has not answered for it for {self._lost_after:g} s: {error}"
                            log.warning("rollout %s is lost: %s", key[0], why)
                            self.abandon(rollout)
                            self.scheduler.lost(rollout, why)
                            return
                    self._in_doubt.set()
                    if not await self._is_reached_again():
                        return
                except CallError as error:
                    if self.rollouts.get(key) is not rollout:
                        return
                    if not (rollout.opened and error.retryable):
                        self.scheduler.init_refused(rollout, self, error)
                        return
                    # The rollout still runs on this server, but its callback is not renewed yet.
                    await asyncio.sleep(error.retry_after or RESEND_PAUSE)
                else:
                    if self.rollouts.get(key) is rollout and not rollout.opened:
                        self.init_answered(rollout, answer.tools)
                    return

    async def _knows(self, key: RolloutKey) -> bool:
        """Return whether the server still has an attempt. Raises NoAnswer, DeadlineExceeded if its worker is away."""
        request = control_pb2.GetRolloutRequest(rollout_id=key[0], attempt=key[1])
        try:
            await self._calls.ask("GetRollout", request, control_pb2.GetRolloutResponse)
        except NotFound:
            return False
        except NoAnswer:
            raise
        except Unavailable as error:
            raise DeadlineExceeded(str(error)) from None
        return True

    async def _is_reached_again(self) -> bool:
        """Wait until the server answers a ping that was sent after `_in_doubt` was set.

        The ping shows whether the same process answers. Return False if the link is closed before that.
        """
        await asyncio.sleep(STATE_PERIOD)
        while not self.attached or self._pinging or self._in_doubt.is_set():
            if self._closed is not None:
                return False
            await asyncio.sleep(STATE_PERIOD)
        return True

    async def _repoint_ended(self) -> None:
        """Renew the callbacks of ended rollouts whose outcomes the server has not delivered.

        An earlier process may have recorded such an outcome without its answer reaching the server, whose callback then
        still has the address of that process. For rollouts that the trainer still waits for, send_init() does this.
        """
        request = control_pb2.ListRolloutsRequest(undelivered=True)
        try:
            while True:
                page = await self._calls.ask("ListRollouts", request, control_pb2.ListRolloutsResponse)
                for row in page.rollouts:
                    key = row.rollout_id, row.attempt
                    if self.cache.knows(row.rollout_id) and key not in self.rollouts:
                        await self._repoint(*key)
                request.page_token = page.next_page_token
                if not request.page_token:
                    return
        except NoAnswer:  # the next connection starts this job again
            self._in_doubt.set()
        except CallError as error:
            log.warning("the callbacks of undelivered outcomes on server %s are not renewed: %s", self.name, error)

    async def _repoint(self, rollout_id: str, attempt: int) -> None:
        """Send the accepted Init of a rollout again with a new callback. The rollout's events contain the Init."""
        async with aclosing(self.events(rollout_id, attempt, 0, tokens=False)) as trail:
            async for event in trail:
                if isinstance(event.kind, events.Accepted):
                    init = replace(event.kind.init, callback=self._make_callback(rollout_id, self.features))
                    await self._init(init)
                    return

    def cancel(self, rollout_id: str, reason: str, attempt: int = 0) -> "asyncio.Future[Results]":
        return self._cancel(control_pb2.CancelRequest(rollout_id=rollout_id, reason=reason, attempt=attempt))

    def cancel_attempt(self, key: RolloutKey) -> None:
        if key in self._cancelling or not self.attached:
            return
        self._cancelling.add(key)

        def done(cancelled: "asyncio.Future[Results]") -> None:
            self._cancelling.discard(key)
            if cancelled.cancelled():
                return
            if cancelled.exception() is None:
                self.has_ended(*key)
            elif key in self.leaving and self._closed is None:
                self.scheduler.cancel_later(self, key[0])

        elsewhere = control_pb2.CancelRequest(rollout_id=key[0], attempt=key[1], reason="it runs elsewhere")
        self._cancel(elsewhere).add_done_callback(done)

    def _cancel(self, request: control_pb2.CancelRequest) -> "asyncio.Future[Results]":
        future: asyncio.Future[Results] = asyncio.get_running_loop().create_future()

        async def send() -> None:
            try:
                answer = await self._ask("Cancel", request, control_pb2.CancelResponse)
            except CallError as error:
                fail(error)
                return
            if not future.done():
                future.set_result([CANCEL_RESULT.from_wire(row) for row in answer.results])

        def fail(error: BaseException) -> None:
            if not future.done():
                future.set_exception(error if isinstance(error, CallError) else job_failed(CANCEL, error))

        self._cancels[future] = self.scheduler.supervisor.start(CANCEL, send, fail)
        future.add_done_callback(lambda _: self._cancels.pop(future).cancel())
        return future

    async def annotate(self, request: annotation_pb2.AnnotateRequest) -> annotation_pb2.AnnotateResponse:
        return await self._ask("Annotate", request, annotation_pb2.AnnotateResponse)

    async def _ask(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        """Return the server's answer, repeating the call if the connection breaks. Raises CallError, or as close()."""
        async with self._slots:
            while True:
                try:
                    return await self._calls.ask(method, request, answer)
                except NoAnswer:
                    self._in_doubt.set()
                    if not await self._is_reached_again():
                        raise self._closed or Unavailable("the server cannot be reached") from None

    async def events(
        self, rollout_id: str, attempt: int, after: int, *, tokens: bool
    ) -> AsyncGenerator[TrajectoryEvent, None]:
        while self._closed is None:
            request = control_pb2.StreamEventsRequest(rollout_id=rollout_id, attempt=attempt, after_event=after)
            stream = None
            try:
                stream = self._calls.stream("StreamEvents", request, control_pb2.StreamEventsResponse)
                self._streams[stream] = None
                while (response := await cancellable(stream.read())) is not grpc.aio.EOF:
                    if response.HasField("event"):
                        after, attempt = response.event.event_number, response.event.attempt
                        if response.event.WhichOneof("kind") is not None:  # None means a kind of a newer protocol
                            event = event_from_wire(response.event)
                            yield event if tokens else without_tokens(event)
                return
            except grpc.aio.AioRpcError as error:
                failed = error_of(error)
                if not isinstance(failed, Unavailable):
                    raise failed from None
            except asyncio.CancelledError:
                raise_if_cancelled()
            except NoAnswer:
                pass
            finally:
                if stream is not None:
                    self._streams.pop(stream, None)
                    stream.cancel()
            self._in_doubt.set()
            await self._is_reached_again()
        raise self._closed

    def grant(self, open_chats: int) -> None:
        """Do nothing, because the transport limits the chats of all servers together."""

    def part(self) -> None:
        self._parting.set()
        self._in_doubt.set()

    def close(self, error: Exception) -> None:
        self._closed = error
        for stream in self._streams:
            stream.cancel()
        for future in list(self._cancels):
            if not future.done():
                future.set_exception(error)


def _window(info: control_pb2.GetServerInfoResponse) -> int:
    return 0 if info.draining else info.capacity.max_concurrent + info.capacity.max_queued
