"""Where rollouts go: to the agent server with the most room, and elsewhere when it is lost."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from osmosis_grpc._gen.osmosis.rollout.v1 import control_pb2, rollout_pb2
from osmosis_grpc.errors import Aborted, AlreadyExists, CallError, LedgerError, Unavailable
from osmosis_grpc.trainer.attachment import Attachment
from osmosis_grpc.trainer.chatbook import UNWRITTEN_RETRY, ChatBook
from osmosis_grpc.trainer.held import Held
from osmosis_grpc.trainer.ledger import KeptChat, KeptRollout, Ledger
from osmosis_grpc.trainer.restore import init_bytes, request_of
from osmosis_grpc.trainer.rollout import Rollout
from osmosis_grpc.trainer.subscriptions import Subscription
from osmosis_grpc.types import Completion, CompletionStatus, Outcome, RolloutRequest, TrajectoryEvent, events

log = logging.getLogger(__name__)

_PARTING = 1.0
UNCLAIMED_RETRY = 5.0
"""Seconds after which a server may report again a rollout that nobody here has asked for."""


class Pool:
    """The attachments of a trainer, and its rollouts that are not over."""

    def __init__(
        self, book: ChatBook, *, lost_after: float, max_open_chats: int, ledger: Ledger | None = None
    ) -> None:  # fmt: skip
        self.book = book
        self.ledger = ledger
        self.held = Held(ledger) if ledger is not None else None
        self.servers: list[Attachment] = []
        self.rollouts: dict[str, Rollout] = {}
        self.paused = False
        self._lost_after = lost_after
        self._max_open_chats = max_open_chats
        self._queues: dict[str, deque[Rollout]] = {}
        self._loop = asyncio.get_running_loop()
        self._timers: dict[Attachment, asyncio.TimerHandle] = {}
        self._nobody: asyncio.TimerHandle | None = self._loop.call_later(lost_after, self._nobody_came)
        self._recovering: dict[tuple[str, int, str], asyncio.Task[None]] = {}
        self._returning: set[asyncio.TimerHandle] = set()
        self._parted = asyncio.Event()
        self._closed = False

    # Rollouts.

    def submit(self, request: RolloutRequest, *, together: str = "") -> Rollout:
        """Take a rollout in, or find the equal one that is not over. Raises AlreadyExists, Unavailable."""
        if self._closed:
            raise Unavailable("the trainer is closed")
        known = self.rollouts.get(request.rollout_id)
        if self.held is not None:
            if known is None and self.held.holds(request.rollout_id, request.attempt):
                return self.hand_out(request)
            self.held.left.pop(request.rollout_id, None)
        if known is not None:
            if not _equal(known.request, request):
                raise AlreadyExists(f"rollout {request.rollout_id} runs with another request",
                                    rollout_id=request.rollout_id, attempt=known.request.attempt)  # fmt: skip
            if request.attempt > known.request.attempt:
                self._supersede(known, request)
            return known
        book = self.book.rollout(request.rollout_id, request.attempt, time.monotonic())
        if book.result_id is not None:
            raise AlreadyExists(
                f"rollout {request.rollout_id} attempt {request.attempt} is over; raise `attempt` to run it again",
                rollout_id=request.rollout_id, attempt=request.attempt,
            )  # fmt: skip
        if self._nobody is None and not self._attached():
            raise self._nobody_there()
        rollout = Rollout(request, self._loop.create_future(), together)
        rollout.done.add_done_callback(_retrieve)
        self.rollouts[request.rollout_id] = rollout
        self._queue(rollout)
        self.changed()
        return rollout

    def hand_out(self, request: RolloutRequest) -> Rollout:
        """A rollout that is over, its completion read from the ledger."""
        assert self.held is not None
        rollout = Rollout(request, self.held.fetch(request.rollout_id, request))
        rollout.done.add_done_callback(_retrieve)
        return rollout

    def restore(self, kept: Iterable[KeptRollout]) -> None:
        """Go on with the rollouts that an earlier process had sent."""
        assert self.held is not None
        places = {server.place: server for server in self.servers}
        for row in kept:
            if row.init is None:
                continue
            rollout = Rollout(request_of(row), self._loop.create_future(), row.together, opened=row.tools is not None,
                              begun=True)  # fmt: skip
            rollout.done.add_done_callback(_retrieve)
            self.rollouts[row.rollout_id] = rollout
            self.held.left[row.rollout_id] = None
            server = places.get(row.place)
            if server is not None:
                server.adopt(rollout)
            else:
                self.restart(rollout, f"{row.place} is none of this trainer's servers any more")
        for server in self.servers:  # each has the time to come that a lost one has to come back
            if server.rollouts:
                self._timers[server] = self._loop.call_later(self._lost_after, self._lost, server)
        if self._nobody is not None:
            self._nobody.cancel()
        self._nobody = self._loop.call_later(self._lost_after, self._nobody_came)

    def forget(self, rollout: Rollout) -> None:
        """A rollout is over, or nobody waits for it any more."""
        if self.rollouts.get(rollout.request.rollout_id) is rollout:
            del self.rollouts[rollout.request.rollout_id]
        if rollout.server is not None:
            rollout.server.over(rollout)

    def refused(self, rollout: Rollout, error: CallError | LedgerError) -> None:
        """No server takes it."""
        self._drop(rollout)
        self.forget(rollout)
        if not rollout.done.done():
            rollout.done.set_exception(error)

    def unwritten(self, rollout: Rollout, error: LedgerError) -> None:
        """The ledger cannot be written: a new rollout is refused, one that ran before waits."""
        if rollout.begun:
            self.put_back(rollout, UNWRITTEN_RETRY)
        else:
            self.refused(rollout, error)
        self.changed()

    def _drop(self, rollout: Rollout) -> None:
        """It is over, and no completion comes."""
        if self.ledger is not None and rollout.begun:
            self.ledger.drop(*rollout.key)

    def give_up(self, rollout: Rollout) -> None:
        """Nobody waits for a rollout any more."""
        if rollout.done.done() or self.rollouts.get(rollout.request.rollout_id) is not rollout:
            return
        rollout.cancelled = rollout.given_up = True
        if rollout.server is None:
            self.end_here(rollout)
        else:
            request = control_pb2.CancelRequest(rollout_id=rollout.request.rollout_id, reason="nobody waits for it")
            rollout.server.cancel(request).add_done_callback(_retrieve)

    def end_here(self, rollout: Rollout) -> None:
        """A rollout that no server has ends CANCELLED."""
        queue = self._queues.get(rollout.request.agent_loop)
        if queue is not None and rollout in queue:
            queue.remove(rollout)
        self._drop(rollout)
        self.forget(rollout)
        if not rollout.done.done():
            rollout_id, attempt = rollout.key
            rollout.done.set_result(Completion(
                rollout_id=rollout_id, attempt=attempt, status=CompletionStatus.CANCELLED, finish_reason="cancelled",
                group=rollout.request.group,
            ))  # fmt: skip

    def _supersede(self, rollout: Rollout, request: RolloutRequest) -> None:
        """A higher attempt was asked for: whoever waits gets its completion."""
        if rollout.server is None:  # it waits for room, and has run nowhere
            rollout.request = request
            return
        rollout.server.let_go(rollout)
        rollout.request = replace(request, attempt=request.attempt - 1)
        self.restart(rollout, "a higher attempt was asked for")

    def restart(self, rollout: Rollout, why: str) -> None:
        """Run a rollout again, with a higher attempt, wherever there is room."""
        if rollout.server is not None:
            rollout.server.over(rollout)
            rollout.server = None
        if rollout.done.done():
            return
        if rollout.cancelled:
            self.end_here(rollout)
            return
        attempt = rollout.request.attempt + 1
        log.warning("rollout %s goes on as attempt %d: %s", rollout.request.rollout_id, attempt, why)
        rollout.request = replace(rollout.request, attempt=attempt)
        rollout.opened = False
        self.book.rollout(rollout.request.rollout_id, attempt, time.monotonic())
        self._queue(rollout, first=True)
        self._loop.call_soon(self.changed)

    def put_back(self, rollout: Rollout, after: float) -> None:
        """A rollout that was not taken is sent again after some seconds."""
        rollout.server = None
        if rollout.cancelled:
            self.end_here(rollout)
            return

        def again() -> None:
            self._returning.discard(timer)
            if not rollout.done.done():
                self._queue(rollout, first=True)
                self.changed()

        timer = self._loop.call_later(after, again)
        self._returning.add(timer)

    def changed(self) -> None:
        """Send what there is room for."""
        for agent_loop, queue in list(self._queues.items()):
            held: list[Rollout] = []
            while queue:
                rollout = queue.popleft()
                if rollout.done.done():
                    continue
                server = self._place(rollout)
                if server is not None:
                    server.start(rollout)
                    continue
                held.append(rollout)
                if not rollout.together:
                    break
            queue.extendleft(reversed(held))
            if not queue:
                del self._queues[agent_loop]

    def _queue(self, rollout: Rollout, *, first: bool = False) -> None:
        queue = self._queues.setdefault(rollout.request.agent_loop, deque())
        (queue.appendleft if first else queue.append)(rollout)

    def _place(self, rollout: Rollout) -> Attachment | None:
        """The server with the most room, that of its group where there is one; None while there is no room."""
        attached = self._attached()
        hosts = [server for server in attached if server.hosts(rollout.request.agent_loop)]
        if not hosts and len(attached) == len(self.servers):  # whoever is asked tells what there is
            hosts = attached
        if rollout.together:
            hosts = [server for server in hosts if rollout.together in server.pinned] or hosts
        best = max(hosts, key=lambda server: server.free, default=None)
        return best if best is not None and best.free > 0 else None

    # Completions.

    def completed(self, server: Attachment, completion: Completion, told: rollout_pb2.Completion) -> None:
        """Record a completion, once the rollout's events were read where that is needed, and tell its server."""
        rollout = self.rollouts.get(completion.rollout_id)
        if rollout is None and not self.book.knows(completion.rollout_id):
            raise self._unclaimed(completion)
        book = self.book.rollout(completion.rollout_id, completion.attempt, time.monotonic())
        if rollout is not None and completion.attempt < rollout.request.attempt:
            raise Aborted(f"rollout {completion.rollout_id} is at attempt {rollout.request.attempt}",
                          rollout_id=completion.rollout_id, attempt=rollout.request.attempt)  # fmt: skip
        if book.result_id is None and rollout is None:
            raise self._unclaimed(completion)
        if book.result_id is None and book.lacks(completion):
            key = (completion.rollout_id, completion.attempt, completion.result_id)
            if key not in self._recovering:
                self._recovering[key] = task = asyncio.create_task(self._recover(server, completion, told))
                task.add_done_callback(lambda _: self._recovering.pop(key))
            return
        self._record(server, completion, told)

    @staticmethod
    def _unclaimed(completion: Completion) -> Unavailable:
        return Unavailable(f"nobody here waits for rollout {completion.rollout_id}", retry_after=UNCLAIMED_RETRY)

    def _record(
        self, server: Attachment, completion: Completion, told: rollout_pb2.Completion, chats: Sequence[KeptChat] = ()
    ) -> None:  # fmt: skip
        def done(outcome: Outcome | CallError, recorded: Completion | None) -> None:
            rollout = self.rollouts.get(completion.rollout_id)
            if recorded is not None and rollout is not None:
                self.forget(rollout)
                if not rollout.done.done():
                    rollout.done.set_result(recorded)
                self.changed()
            server.tell_outcome(completion, outcome)

        rollout = self.rollouts.get(completion.rollout_id)
        given_up = rollout is not None and rollout.given_up and not rollout.waiters
        self.book.record(completion, told, done, given_up=given_up, chats=chats)

    async def _recover(self, server: Attachment, completion: Completion, told: rollout_pb2.Completion) -> None:
        """Read what a completion refers to from the rollout's events, and record it then."""
        subscription = Subscription(completion.rollout_id, completion.attempt, 0, tokens=True)
        try:
            server.subscribe(subscription)
            trajectory: list[TrajectoryEvent] = []
            async for event in subscription.read(server.subscribe):
                trajectory.append(event)
                if isinstance(event.kind, events.Ended):
                    break
            book = self.book.rollout(completion.rollout_id, completion.attempt, time.monotonic())
            book.restore(trajectory)
            chats = book.kept(completion.rollout_id) if self.ledger is not None else ()
            self._record(server, completion, told, chats)
        except CallError as error:
            problem = Unavailable(f"the events that the completion refers to cannot be read: {error}")
            server.tell_outcome(completion, problem)
        finally:
            server.unsubscribe(subscription)

    # Servers.

    def attached(self, server: Attachment) -> None:
        """A server has a stream."""
        timer = self._timers.pop(server, None)
        if timer is not None:
            timer.cancel()
        if self._nobody is not None:
            self._nobody.cancel()
            self._nobody = None
        if server not in self.servers:
            self.servers.append(server)
        self.grant()

    def left(self, server: Attachment) -> None:
        """A server's stream has ended: its rollouts wait for it, and then go elsewhere."""
        self._parted.set()
        if self._closed or server.attached:
            return
        self.grant()
        timer = self._timers.pop(server, None)
        if timer is not None:
            timer.cancel()
        self._timers[server] = self._loop.call_later(self._lost_after, self._lost, server)
        if not self._attached() and self._nobody is None:
            self._nobody = self._loop.call_later(self._lost_after, self._nobody_came)

    def drop_one(self) -> bool:
        """Forget a server that is away and has nothing left to do; false when there is none."""
        gone = next((s for s in self.servers if not s.attached and not s.rollouts and s not in self._timers), None)
        if gone is not None:
            self.servers.remove(gone)
        return gone is not None

    def share(self, joining: Attachment | None = None) -> int:
        """How many chats each server may have open; 0 while paused."""
        if self.paused:
            return 0
        others = sum(server is not joining for server in self._attached())
        return max(1, self._max_open_chats // (others + 1))

    def grant(self) -> None:
        """Tell every server its share."""
        for server in self._attached():
            server.grant(self.share(server))

    async def part(self) -> None:
        """Leave every server in good order."""
        for server in self._attached():
            server.part()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PARTING):
                while self._attached():
                    self._parted.clear()
                    await self._parted.wait()

    def close(self) -> None:
        """Nothing more comes: whoever waits is told."""
        self._closed = True
        timers: Iterable[asyncio.TimerHandle | None] = (*self._timers.values(), *self._returning, self._nobody)
        for timer in timers:
            if timer is not None:
                timer.cancel()
        for task in self._recovering.values():
            task.cancel()
        error = Unavailable("the trainer was closed")
        for server in self.servers:
            server.close(error)
        for rollout in self.rollouts.values():
            if not rollout.done.done():
                rollout.done.set_exception(error)
        self.rollouts.clear()
        self.book.close()

    def _attached(self) -> list[Attachment]:
        return [server for server in self.servers if server.attached]

    def _lost(self, server: Attachment) -> None:
        self._timers.pop(server, None)
        if server.rollouts:
            log.warning("server %s is lost; its %d rollouts go elsewhere", server.name, len(server.rollouts))
        server.leaving.update(server.rollouts)
        server.close(Unavailable(f"server {server.name} was away for {self._lost_after:g} s"))
        for rollout in list(server.rollouts.values()):
            self.restart(rollout, f"server {server.name} was away for {self._lost_after:g} s")

    def _nobody_came(self) -> None:
        self._nobody = None
        error = self._nobody_there()
        waiting = [rollout for rollout in self.rollouts.values() if rollout.server is None]
        for rollout in waiting:
            self.forget(rollout)
            if not rollout.done.done():
                rollout.done.set_exception(error)

    def _nobody_there(self) -> Unavailable:
        problems = "; ".join(f"{server.name}: {server.problem or 'no answer'}" for server in self.servers)
        return Unavailable(
            f"no agent server was there for {self._lost_after:g} s ({problems or 'none is named, and none dialled in'})"
        )


def _equal(known: RolloutRequest, request: RolloutRequest) -> bool:
    """Whether it is the same request, but for its attempt; one that the ledger kept is as it was sent."""
    request = replace(request, attempt=known.attempt)
    return known == request or init_bytes(known) == init_bytes(request)


def _retrieve(done: "asyncio.Future[Any]") -> None:
    if not done.cancelled():
        done.exception()
