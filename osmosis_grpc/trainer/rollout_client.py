"""The client of RolloutService: starts, lists, follows and cancels rollouts."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Unpack

import grpc

from osmosis_grpc.network.bearer_tokens import narrowed
from osmosis_grpc.network.channel_options import client_options
from osmosis_grpc.network.client_calls import call, cancellable, error_of
from osmosis_grpc.network.connection_errors import explained
from osmosis_grpc.network.credentials import Credentials, channel
from osmosis_grpc.network.tls import ClientTls
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2_grpc
from osmosis_grpc.protocol.errors import CallError, Unavailable
from osmosis_grpc.protocol.types import (
    Callback,
    CancelResult,
    EarlierRun,
    InitRequest,
    RolloutFilter,
    RolloutInfo,
    RolloutRequest,
    ToolDict,
    TrajectoryEvent,
)
from osmosis_grpc.protocol.types.annotation import Annotation
from osmosis_grpc.protocol.types.rollout_info import EVERY
from osmosis_grpc.protocol.types.server_info import DrainResult, ServerInfo
from osmosis_grpc.protocol.wire.control import CANCEL_RESULT, DRAIN_RESULT, FILTER, SERVER_INFO
from osmosis_grpc.protocol.wire.event import annotate_request, event_from_wire
from osmosis_grpc.protocol.wire.message import tools_from_wire
from osmosis_grpc.protocol.wire.outcome import EARLIER_RUN
from osmosis_grpc.protocol.wire.rollout import ROLLOUT, init_to_wire
from osmosis_grpc.supervise import SYSTEM, Backoff, ForkGuard, System
from osmosis_grpc.trainer.log_warnings import Unreached
from osmosis_grpc.trainer.request_check import RolloutFields, check_selection, checked
from osmosis_grpc.trainer.transports.calls import raise_if_cancelled

STREAM_PAUSES = 0.25, 5.0
"""The first and the longest pause, in seconds, before events() connects again."""


@dataclass(frozen=True, slots=True)
class InitResult:
    """The answer to an Init."""

    rollout_id: str
    attempt: int
    tools: Sequence[ToolDict]
    created: bool
    """Whether this call started the rollout. False if an earlier call with the same request had started it."""
    from_journal: EarlierRun | None = None
    """Set if the rollout ended in an earlier run of the trainer. The server sends its outcome again."""


class RolloutClient:
    """Talks to one agent server. Use it as `async with RolloutClient("HOST:PORT") as client`.

    All methods that call the server raise CallError.

    Args:
        target: HOST:PORT of the server.
        timeout: The time limit of a unary call, in seconds.
        lost_after: After a lost connection, events() tries to reconnect for this many seconds.
        token: The bearer token of every call. Without TLS, it is sent only to this machine unless `insecure` is set.
        tls: The files for TLS.
        insecure: Whether the token may be sent to other machines without TLS.
        system: The clock and the random numbers. Tests replace it.

    Raises:
        ValueError: The target is malformed, or needs TLS.
        TypeError: `tls` is not a ClientTls.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout: float = 30.0,
        lost_after: float = 120.0,
        token: str = "",
        tls: ClientTls | None = None,
        insecure: bool = False,
        system: System = SYSTEM,
    ) -> None:
        if target.startswith(("http://", "https://")) or ":" not in target:
            raise ValueError(f"target: {target!r} is not HOST:PORT, for example 127.0.0.1:50051")
        self.target = target
        self._timeout = timeout
        self._lost_after = lost_after
        credentials = Credentials(token=token, tls=tls, insecure=insecure)
        credentials.check_target(target)
        self._credentials = credentials
        self._metadata = credentials.metadata
        self._system = system
        self._unreached = Unreached(target, system.monotonic)
        self._guard = ForkGuard("this RolloutClient")
        self._channel = channel(target, credentials.tls, client_options())
        self._opened_stub = services_pb2_grpc.RolloutServiceStub(self._channel)
        self._closed = False
        self._streams: set[Any] = set()
        """The open streams of events. Older versions of grpcio do not end them when the channel is closed."""

    async def __aenter__(self) -> "RolloutClient":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self._closed = True
        self._guard.close()
        for stream in self._streams:
            stream.cancel()
        await self._channel.close()

    @property
    def _stub(self) -> Any:
        self._guard.check()
        return self._opened_stub

    async def init(
        self,
        request: RolloutRequest | None = None,
        *,
        callback: Callback | None = None,
        **changes: Unpack[RolloutFields],
    ) -> InitResult:
        """Start a rollout.

        Idempotent: a second call with the same request starts nothing, and returns the same result with `created`
        false. If the rollout has ended, the server sends its outcome again. A higher `attempt` runs the rollout
        again.

        Args:
            request: The request. You can also pass its fields by name.
            callback: Where the trainer listens for chats and the outcome: trainer.callback().
            **changes: Fields of RolloutRequest.
        """
        if callback is not None and not isinstance(callback, Callback):
            raise TypeError(f"callback is a {type(callback).__name__}; use trainer.callback()")
        wanted = checked(request, changes)
        if callback is not None and callback.credential:
            callback = replace(callback, credential=narrowed(callback.credential, wanted.rollout_id))
        message = init_to_wire(InitRequest(request=wanted, callback=callback))
        answer = await self._call(self._stub.Init, message)
        earlier = EARLIER_RUN.field_of(answer, "from_journal")
        tools = tools_from_wire(answer.tools, "tools")
        return InitResult(answer.rollout_id, answer.attempt, tools, answer.created, earlier)

    async def get(self, rollout_id: str, attempt: int = 0) -> RolloutInfo:
        """Return the state of a rollout.

        Args:
            rollout_id: The rollout.
            attempt: The attempt; 0 means the highest.
        """
        answer = await self._call(self._stub.GetRollout, pb.GetRolloutRequest(rollout_id=rollout_id, attempt=attempt))
        return ROLLOUT.from_wire(answer.rollout)

    async def rollouts(
        self,
        where: RolloutFilter | None = None,
        *,
        group_id: str = "",
        undelivered: bool = False,
        newest_first: bool = False,
    ) -> AsyncIterator[RolloutInfo]:
        """Yield the caller's rollouts in the order of their acceptance, page by page.

        Args:
            where: Selects the rollouts. It cannot be combined with `group_id` or `undelivered`.
            group_id: Yield only the rollouts of this group.
            undelivered: Yield only rollouts whose outcome is not delivered.
            newest_first: Whether to reverse the order.

        Raises: TypeError: `where` is combined with another condition.
        """
        if where is not None and (group_id or undelivered):
            raise TypeError("where: give all conditions in it, not also group_id or undelivered")
        chosen = where if where is not None else RolloutFilter(group_id=group_id, undelivered=undelivered)
        token = ""
        while True:
            rows, token = await self.page(chosen, token, newest_first=newest_first)
            for row in rows:
                yield row
            if not token:
                return

    async def page(
        self, where: RolloutFilter = EVERY, token: str = "", *, limit: int = 0, newest_first: bool = False
    ) -> tuple[list[RolloutInfo], str]:
        """Return a page of the caller's rollouts, and the token of the next page, which is "" after the last page.

        Args:
            where: Selects the rollouts.
            token: The token of the page; "" for the first page.
            limit: The largest number of rows; 0 means the server's default.
            newest_first: Whether the page begins with the rollout that was accepted last.
        """
        request = FILTER.to_wire(where)
        request.page_token, request.page_size, request.newest_first = token, limit, newest_first
        answer = await self._call(self._stub.ListRollouts, request)
        return [ROLLOUT.from_wire(row) for row in answer.rollouts], answer.next_page_token

    async def cancel(
        self,
        rollout_id: str = "",
        *,
        group_id: str = "",
        prefix: str = "",
        everything: bool = False,
        attempt: int = 0,
        reason: str = "",
    ) -> list[CancelResult]:
        """Cancel rollouts of the caller, and return a result for each of them.

        Args:
            rollout_id: Cancel this rollout.
            group_id: Cancel the rollouts of this group.
            prefix: Cancel the rollouts whose ids begin with this text.
            everything: Cancel all rollouts.
            attempt: The attempt of `rollout_id`; 0 means the newest.
            reason: The reason, for the outcome.

        Raises:
            InvalidArgument: Not exactly one of the first four arguments is set.
        """
        check_selection(rollout_id, group_id, prefix, everything=everything)
        request = pb.CancelRequest(attempt=attempt, reason=reason)
        if everything:
            request.all.SetInParent()
        for name, value in (("rollout_id", rollout_id), ("group_id", group_id), ("rollout_id_prefix", prefix)):
            if value:
                setattr(request, name, value)
        return [CANCEL_RESULT.from_wire(row) for row in (await self._call(self._stub.Cancel, request)).results]

    async def annotate(self, rollout_id: str, annotation: Annotation, *, attempt: int = 0) -> tuple[int, bool]:
        """Store an annotation with a rollout of the caller.

        Args:
            rollout_id: The rollout.
            annotation: The annotation.
            attempt: The attempt; 0 means the newest.

        Returns:
            The number of the annotation's event, and whether this call has added it.

        Raises:
            NotFound: The server does not have the rollout.
            AlreadyExists: Another annotation has the same id.
            InvalidArgument: The annotation does not fit the outcome.
        """
        request = annotate_request(rollout_id, attempt, annotation)
        response = await self._call(self._stub.Annotate, request)
        return response.event_number, response.created

    async def events(
        self, rollout_id: str, *, after: int = 0, attempt: int = 0
    ) -> AsyncGenerator[TrajectoryEvent, None]:
        """Yield a rollout's events so far, and then its new events until the last one.

        If the stream breaks, a new stream continues with the next event. Kinds of events that only a newer protocol
        knows are left out.

        Args:
            rollout_id: The rollout.
            after: Yield only events with higher numbers.
            attempt: The attempt; 0 means the newest.

        Raises:
            Unavailable: The server is lost, or this client was closed.
        """
        answered, backoff = self._system.monotonic(), Backoff(*STREAM_PAUSES, system=self._system)
        while True:
            request = pb.StreamEventsRequest(rollout_id=rollout_id, attempt=attempt, after_event=after)
            try:
                async with aclosing(self._stream(request)) as stream:
                    async for response in stream:
                        answered = self._system.monotonic()
                        self._unreached.reached()
                        backoff.reset()
                        if response.HasField("event"):
                            after, attempt = response.event.event_number, response.event.attempt
                            if response.event.WhichOneof("kind"):
                                yield event_from_wire(response.event)
                return
            except Unavailable as error:
                if self._closed or not error.retryable or self._system.monotonic() - answered > self._lost_after:
                    raise
                self._unreached.failed(error)
                await asyncio.sleep(backoff.next())

    async def all_events(
        self, cursor: str = "", from_now: bool = False
    ) -> AsyncGenerator[tuple[str, TrajectoryEvent | None], None]:
        """Yield the events of all rollouts, endlessly. Each value is a cursor and an event, or None for a heartbeat.

        Args:
            cursor: Yield only events after this cursor.
            from_now: Whether to yield only new events.

        Raises:
            Unavailable: The stream broke. Call again with the last cursor.
        """
        request = pb.StreamEventsRequest(cursor=cursor, from_now=from_now)
        async with aclosing(self._stream(request)) as stream:
            async for response in stream:
                known = response.HasField("event") and response.event.WhichOneof("kind")
                yield response.cursor, event_from_wire(response.event) if known else None

    async def info(self) -> ServerInfo:
        """Return the server's identity, its agent loops and its capacity."""
        return SERVER_INFO.from_wire(await self._call(self._stub.GetServerInfo, pb.GetServerInfoRequest()))

    async def drain(self, *, cancel: bool = False) -> DrainResult:
        """Make the server refuse new rollouts and finish running ones. With `cancel`, it accepts new rollouts again.

        Needs an administrator's token (`serve --admin-token-file`), or a server on this machine without tokens.
        """
        return DRAIN_RESULT.from_wire(await self._call(self._stub.Drain, pb.DrainRequest(cancel=cancel)))

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the client was closed")

    async def _call(self, method: Any, request: Any) -> Any:
        self._check_open()
        try:
            return await call(method, request, timeout=self._timeout, metadata=self._metadata)
        except CallError as error:
            raise await explained(self.target, self._credentials, error) from None

    async def _stream(self, request: pb.StreamEventsRequest) -> AsyncGenerator[pb.StreamEventsResponse, None]:
        self._check_open()
        stream: Any = self._stub.StreamEvents(request, metadata=tuple(self._metadata) or None)
        self._streams.add(stream)
        try:
            while (response := await cancellable(stream.read())) is not grpc.aio.EOF:
                yield response
        except grpc.aio.AioRpcError as error:
            raise await explained(self.target, self._credentials, error_of(error)) from None
        except asyncio.CancelledError:  # the reader's task was cancelled, or only the call
            raise_if_cancelled()
            raise Unavailable("the client was closed") from None
        finally:
            self._streams.discard(stream)
            stream.cancel()
