"""Tracks which agent servers of a trainer can be reached, which are lost, and how many chats each may have open."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from osmosis_grpc.network.connection_errors import is_permanent
from osmosis_grpc.protocol.errors import CallError, Unavailable
from osmosis_grpc.protocol.stream.stream_machine import LEAVE_TIMEOUT
from osmosis_grpc.supervise import OnFailure, Supervisor, job
from osmosis_grpc.trainer.agent_server_link import AgentServerLink
from osmosis_grpc.trainer.config import TrainerConfig

log = logging.getLogger(__name__)

LOST = job("trainer.lost_server", OnFailure.REPORT, "timer")
NONE_ATTACHED = job("trainer.no_server", OnFailure.FAIL_OWNER, "timer")

FIRST_ANSWERS = 1.0
"""Rollouts wait at most this many seconds for the first answers of new servers."""
_PARTING = 2 * LEAVE_TIMEOUT
"""part() waits at most this many seconds until the last frames of all streams are written and read."""


@dataclass(frozen=True, slots=True)
class Server:
    """The state of an agent server."""

    name: str
    """The server's target, or the address from which it connected to this trainer."""
    attached: bool
    window: int
    """How many rollouts may be open on the server."""
    open: int
    """How many rollouts are open on the server."""
    agent_loops: tuple[str, ...]
    version: str
    journal_id: str
    retired: bool = False
    """Whether the server was removed from every source. It gets no new rollouts."""


class Servers:
    """The servers of the sources, and those that connected to this trainer. Iterates over all of them.

    After a server was away for `lost_after` seconds, `lost` is called, which runs the server's rollouts elsewhere. If
    `lost` fails, `stuck` is called. After no server was attached for `lost_after` seconds, `none_attached` is called.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        config: TrainerConfig,
        lost: Callable[[AgentServerLink, str], None],
        stuck: Callable[[AgentServerLink, BaseException], None],
        none_attached: Callable[[CallError], None],
    ) -> None:
        self.running = asyncio.Event()
        """Cleared while the trainer is paused."""
        self.running.set()
        self.more_may_come = False
        """Whether other servers may connect to this trainer."""
        self.why_not_more: Callable[[], list[str]] = list
        """Returns the reasons why sources name no servers."""
        self._known: list[AgentServerLink] = []
        self._first_answers_until = 0.0
        self._lost_after = config.lost_after
        self._max_open_chats = config.max_open_chats
        self._supervisor = supervisor
        self._on_lost = lost
        self._on_stuck = stuck
        self._on_none_attached = none_attached
        self._timers: dict[AgentServerLink, asyncio.TimerHandle] = {}
        self._giving_up: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        """Set when a server arrives, and when the trainer gives up."""
        self._closed = False
        self._wait_for_any()
        self.parting = False
        """Whether the trainer is closing. While it closes, an ended connection is not reported as a failure."""
        self._parted = asyncio.Event()

    def __iter__(self) -> Iterator[AgentServerLink]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def add(self, *servers: AgentServerLink) -> None:
        """Add servers, and wait for their first answers."""
        self._known += servers
        self._first_answers_until = self._supervisor.system.monotonic() + FIRST_ANSWERS
        self._wait_for_any()

    def retire(self, server: AgentServerLink) -> None:
        """Send no new rollouts to a server. keep() takes it back, and remove() forgets it."""
        server.retired = True
        self._wait_for_any()

    def keep(self, server: AgentServerLink) -> None:
        """Send rollouts to a retired server again."""
        server.retired = False
        if server.attached:
            self.arrived(server)
        else:
            self._wait_for_any()

    def remove(self, server: AgentServerLink) -> None:
        """Forget a server."""
        if server in self._known:
            self._known.remove(server)
        self._stop_waiting(server)
        self.grant()

    def states(self) -> list[Server]:
        """Return the states of all servers."""
        return [
            Server(
                name=server.name,
                attached=server.attached,
                window=server.window,
                open=len(server.rollouts),
                agent_loops=server.identity.agent_loops,
                version=server.identity.version,
                journal_id=server.identity.journal_id,
                retired=server.retired,
            )
            for server in self._known
        ]

    @property
    def attached(self) -> list[AgentServerLink]:
        """The servers that can be reached."""
        return [server for server in self._known if server.attached]

    @property
    def named(self) -> list[AgentServerLink]:
        """The servers that may get rollouts when they can be reached."""
        return [server for server in self._known if not server.retired]

    @property
    def usable(self) -> list[AgentServerLink]:
        """The servers that may get rollouts now."""
        return [server for server in self._known if server.usable]

    @property
    def first_answers_missing(self) -> float:
        """How many more seconds rollouts wait for the first answers of new servers; 0 if there is no need to wait.

        Without this wait, the first server to answer would get all rollouts.
        """
        if all(server.used or server.retired or server.problem is not None for server in self._known):
            return 0.0
        return max(0.0, self._first_answers_until - self._supervisor.system.monotonic())

    @property
    def draining(self) -> list[str]:
        """The names of the usable servers if all of them are draining; otherwise an empty list."""
        usable = self.usable
        return [] if any(server.window for server in usable) else [server.name for server in usable]

    @property
    def given_up(self) -> bool:
        """Whether the trainer gave up after `lost_after` seconds without a usable server, and still has none."""
        return self._giving_up is None and not self.usable

    def arrived(self, server: AgentServerLink) -> None:
        """Record that a server can be reached."""
        self._stop_waiting(server)
        self._changed.set()
        if not server.retired:
            self._stop_giving_up()
        if server not in self._known:
            self._known.append(server)
        self.grant()

    async def wait_for(self, count: int, timeout: float) -> None:
        """Wait until `count` servers can be used. Raises CallError after `timeout` seconds.

        Raises the error of why_none() earlier if the trainer gives up.
        """
        try:
            async with asyncio.timeout(timeout):
                while len(self.usable) < count:
                    if self.given_up or self._closed:
                        raise self.why_none()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            if not self.usable:
                raise self.why_none(timeout) from None
            there = ", ".join(server.name for server in self.usable)
            raise Unavailable(
                f"{len(self.usable)} of {count} agent servers were there after {timeout:g} s: {there}"
            ) from None

    def not_reached(self, server: AgentServerLink, error: CallError | None) -> None:
        """Record a failed connection. If every server has a permanent error, the waiting rollouts end at once."""
        if server.used or self._closed:
            return
        before, server.refusal = server.refusal, error if is_permanent(error) else None
        if server.refusal is not None:
            if self._all_refuse and self._giving_up is not None:
                self._stop_giving_up()
                self._give_up()
        elif before is not None:  # the server may work after a restart
            self._wait_for_any()

    @property
    def _all_refuse(self) -> bool:
        named = self.named
        return bool(named) and not self.more_may_come and all(server.refusal is not None for server in named)

    def left(self, server: AgentServerLink) -> None:
        """Record that a server cannot be reached. Its rollouts wait for it for `lost_after` seconds."""
        self._parted.set()
        if self._closed or server.attached:
            return
        self.grant()
        if server in self._known:
            self._wait_for(server)
        self._wait_for_any()

    def wait_anew(self) -> None:
        """Start waiting again, for `lost_after` seconds, for each server that has rollouts of an earlier process."""
        for server in self._known:
            if server.rollouts:
                self._wait_for(server)
        self._stop_giving_up()
        self._wait_for_any()

    def drop_one(self) -> bool:
        """Forget one server that is away and runs no rollouts. Return False if there is no such server."""
        gone = next((s for s in self._known if not s.attached and not s.rollouts and s not in self._timers), None)
        if gone is not None:
            self._known.remove(gone)
        return gone is not None

    def share(self, joining: AgentServerLink | None = None) -> int:
        """Return how many chats each server may have open; 0 while paused. Counts `joining` as attached."""
        if not self.running.is_set():
            return 0
        others = sum(server is not joining for server in self.attached)
        return max(1, self._max_open_chats // (others + 1))

    def pause(self) -> None:
        """Stop servers from opening chats."""
        self.running.clear()
        self.grant()

    def resume(self) -> None:
        """Let servers open chats again."""
        self.running.set()
        self.grant()

    def grant(self) -> None:
        """Send every server its share."""
        for server in self.attached:
            server.grant(self.share(server))

    async def part(self) -> None:
        """End every connection once its queued messages are sent."""
        self.parting = True
        for server in self.attached:
            server.part()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PARTING):
                while self.attached:
                    self._parted.clear()
                    await self._parted.wait()

    def close(self, error: Exception) -> None:
        """Fail every call that waits for a server with this error."""
        self._closed = True
        self._changed.set()
        for timer in (*self._timers.values(), self._giving_up):
            if timer is not None:
                timer.cancel()
        for server in self._known:
            server.close(error)

    def why_none(self, waited: float | None = None) -> CallError:
        """Return the error for callers that have waited for a server for `waited` seconds; the default is `lost_after`.

        If every server refuses permanently, the error contains the refusals.
        """
        refusals = [server.refusal for server in self.named if server.refusal is not None]
        if refusals and self._all_refuse:
            return type(refusals[0])("; ".join(dict.fromkeys(map(str, refusals))))
        problems = self.why_not_more()
        for server in self.named:
            why = str(server.problem or "no answer").replace(f"server {server.name} ", "it ", 1)
            problems.append(f"{server.name}: {why}")
        seconds = self._lost_after if waited is None else waited
        known = "; ".join(problems) or "none is named, and none dialled in"
        return Unavailable(f"no agent server was there for {seconds:g} s ({known})")

    def _wait_for(self, server: AgentServerLink) -> None:
        self._stop_waiting(server)
        self._timers[server] = self._supervisor.call_later(
            LOST, self._lost_after, self._lost, server, report=partial(self._on_stuck, server)
        )

    def _wait_for_any(self) -> None:
        """If there is no usable server, give up in `lost_after` seconds."""
        if self._giving_up is None and not self.usable:
            self._giving_up = self._supervisor.call_later(NONE_ATTACHED, self._lost_after, self._give_up)

    def _stop_giving_up(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _stop_waiting(self, server: AgentServerLink) -> None:
        timer = self._timers.pop(server, None)
        if timer is not None:
            timer.cancel()

    def _lost(self, server: AgentServerLink) -> None:
        self._timers.pop(server, None)
        if server.rollouts:
            log.warning("server %s is lost; its %d rollouts go elsewhere", server.name, len(server.rollouts))
        why = f"server {server.name} was away for {self._lost_after:g} s"
        server.lost(Unavailable(why))
        self._on_lost(server, why)

    def _give_up(self) -> None:
        self._giving_up = None
        self._changed.set()
        self._on_none_attached(self.why_none())
