"""A trainer's agent servers: which are attached, which are lost, and how many chats each may have open."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from osmosis_grpc.errors import CallError, Unavailable
from osmosis_grpc.link.connection_errors import is_permanent
from osmosis_grpc.link.frame_stream import LEAVE_TIMEOUT
from osmosis_grpc.supervise import OnFailure, Supervisor, job
from osmosis_grpc.trainer.agent_server_link import AgentServerLink
from osmosis_grpc.trainer.config import TrainerConfig

log = logging.getLogger(__name__)

LOST = job("trainer.lost_server", OnFailure.REPORT, "timer")
NOBODY = job("trainer.no_server", OnFailure.FAIL_OWNER, "timer")

_PARTING = 2 * LEAVE_TIMEOUT
"""Seconds that streams have to end in good order: to write their last frames, and to have them read."""


@dataclass(frozen=True, slots=True)
class Server:
    """An agent server, as the trainer sees it."""

    name: str
    """Its target, or where it dialled from."""
    attached: bool
    window: int
    """How many rollouts may be open there."""
    open: int
    """How many are."""
    agent_loops: tuple[str, ...]
    version: str
    journal_id: str


class Servers:
    """Those that are named and those that dialled in. Iterates over all of them.

    `lost` is called with one that was away for `lost_after` seconds, before what runs there goes elsewhere, `stuck`
    when that has failed; `nobody` is called when none was there for so long.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        config: TrainerConfig,
        lost: Callable[[AgentServerLink, str], None],
        stuck: Callable[[AgentServerLink, BaseException], None],
        nobody: Callable[[CallError], None],
    ) -> None:
        self.running = asyncio.Event()
        """Set unless the trainer is paused."""
        self.running.set()
        self.more_may_come = False
        """Whether servers that nobody has named may dial in."""
        self._known: list[AgentServerLink] = []
        self._lost_after = config.lost_after
        self._max_open_chats = config.max_open_chats
        self._supervisor = supervisor
        self._on_lost = lost
        self._on_stuck = stuck
        self._on_none_attached = nobody
        self._timers: dict[AgentServerLink, asyncio.TimerHandle] = {}
        self._nobody: asyncio.TimerHandle | None = None
        self._wait_for_any()
        self._parted = asyncio.Event()
        self._closed = False

    def __iter__(self) -> Iterator[AgentServerLink]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def add(self, *servers: AgentServerLink) -> None:
        """Await these."""
        self._known += servers

    @property
    def attached(self) -> list[AgentServerLink]:
        """Those with a stream."""
        return [server for server in self._known if server.attached]

    @property
    def all_attached(self) -> bool:
        """Whether every one has a stream."""
        return all(server.attached for server in self._known)

    @property
    def given_up(self) -> bool:
        """Whether none has come for so long that nothing is sent or awaited."""
        return self._nobody is None and not self.attached

    def arrived(self, server: AgentServerLink) -> None:
        """A server has a stream."""
        self._stop_waiting(server)
        if self._nobody is not None:
            self._nobody.cancel()
            self._nobody = None
        if server not in self._known:
            self._known.append(server)
        self.grant()

    def not_reached(self, server: AgentServerLink, error: CallError | None) -> None:
        """A dial has ended. A server that refuses at first contact is of no use: where no other is, nothing waits."""
        if server.used or self._closed:
            return
        before, server.refusal = server.refusal, error if is_permanent(error) else None
        if server.refusal is not None:
            if self._all_refuse and self._nobody is not None:
                self._nobody.cancel()
                self._nobody_came()
        elif before is not None and self._nobody is None and not self.attached:  # it is started anew, perhaps mended
            self._wait_for_any()

    @property
    def _all_refuse(self) -> bool:
        return not self.more_may_come and all(server.refusal is not None for server in self._known)

    def left(self, server: AgentServerLink) -> None:
        """A server's stream has ended: its rollouts wait for it, and then go elsewhere."""
        self._parted.set()
        if self._closed or server.attached:
            return
        self.grant()
        self._wait_for(server)
        if not self.attached and self._nobody is None:
            self._wait_for_any()

    def wait_anew(self) -> None:
        """Those that rollouts are at have the time to come that a lost one has to come back."""
        for server in self._known:
            if server.rollouts:
                self._wait_for(server)
        if self._nobody is not None:
            self._nobody.cancel()
        self._wait_for_any()

    def drop_one(self) -> bool:
        """Forget a server that is away and has nothing left to do; false when there is none."""
        gone = next((s for s in self._known if not s.attached and not s.rollouts and s not in self._timers), None)
        if gone is not None:
            self._known.remove(gone)
        return gone is not None

    def share(self, joining: AgentServerLink | None = None) -> int:
        """How many chats each server may have open; 0 while paused."""
        if not self.running.is_set():
            return 0
        others = sum(server is not joining for server in self.attached)
        return max(1, self._max_open_chats // (others + 1))

    def pause(self) -> None:
        """Let no further chat come."""
        self.running.clear()
        self.grant()

    def resume(self) -> None:
        """Let chats come again."""
        self.running.set()
        self.grant()

    def grant(self) -> None:
        """Tell every server its share."""
        for server in self.attached:
            server.grant(self.share(server))

    async def part(self) -> None:
        """Leave every server in good order."""
        for server in self.attached:
            server.part()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PARTING):
                while self.attached:
                    self._parted.clear()
                    await self._parted.wait()

    def close(self, error: Exception) -> None:
        """End every wait for a server's answer with this error."""
        self._closed = True
        for timer in (*self._timers.values(), self._nobody):
            if timer is not None:
                timer.cancel()
        for server in self._known:
            server.close(error)

    def nobody_there(self) -> CallError:
        """What is told to whoever waits for a server: the refusal, where there is one server and it refuses."""
        refusals = [server.refusal for server in self._known if server.refusal is not None]
        if refusals and self._all_refuse:
            return type(refusals[0])("; ".join(dict.fromkeys(map(str, refusals))))
        problems = "; ".join(f"{server.name}: {server.problem or 'no answer'}" for server in self._known)
        return Unavailable(
            f"no agent server was there for {self._lost_after:g} s ({problems or 'none is named, and none dialled in'})"
        )

    def _wait_for(self, server: AgentServerLink) -> None:
        self._stop_waiting(server)
        self._timers[server] = self._supervisor.call_later(
            LOST, self._lost_after, self._lost, server, report=partial(self._on_stuck, server)
        )

    def _wait_for_any(self) -> None:
        self._nobody = self._supervisor.call_later(NOBODY, self._lost_after, self._nobody_came)

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

    def _nobody_came(self) -> None:
        self._nobody = None
        self._on_none_attached(self.nobody_there())
