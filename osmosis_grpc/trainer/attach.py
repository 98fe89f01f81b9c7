"""attach(): a trainer's rollouts on any number of agent servers, over one stream each."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_grpc._gen.osmosis.rollout.v1 import control_pb2
from osmosis_grpc.errors import NotFound
from osmosis_grpc.link.credentials import Access
from osmosis_grpc.link.security import Security
from osmosis_grpc.link.tls import ClientTls, ServerTls
from osmosis_grpc.policies import Policy
from osmosis_grpc.trainer.attachment import Attachment
from osmosis_grpc.trainer.chatbook import ChatBook
from osmosis_grpc.trainer.connections import Connections
from osmosis_grpc.trainer.ledger import Ledger
from osmosis_grpc.trainer.pool import Pool
from osmosis_grpc.trainer.requests import checked
from osmosis_grpc.trainer.run import Requests, Run, left_over
from osmosis_grpc.trainer.subscriptions import Subscription
from osmosis_grpc.types import CancelResult, Completion, RolloutRequest, TrajectoryEvent
from osmosis_grpc.wire.control import cancelled_from_wire

log = logging.getLogger(__name__)

MAX_OPEN_CHATS = 16_384


def attach(
    targets: str | Sequence[str], policy: Policy, *, listen_on: str = "", lost_after: float = 120.0,
    max_open_chats: int = MAX_OPEN_CHATS, delta: bool = True, ttl: float = 7200.0, ledger: str | Path | None = None,
    token: str = "", tls: ClientTls | None = None, listen_tokens: str | Sequence[str] = (),
    listen_tls: ServerTls | None = None, insecure: bool = False, longest_pause: float = 10.0,
) -> "Trainer":  # fmt: skip
    """A trainer with any number of agent servers, to be used with `async with`.

    `listen_on` is a HOST:PORT for agent servers that dial out (`serve --connect`); port 0 picks
    a free one. A server that is away for `lost_after` seconds is lost: its rollouts run elsewhere,
    with a higher attempt; when none is there for so long, rollouts end with Unavailable.
    `max_open_chats` bounds how many chats may be open, shared evenly among the servers, each of
    which may have at least one. Without `delta` every chat comes with its whole history. What is
    known of a rollout is forgotten `ttl` seconds after it was last heard of. A server that is away
    is dialled again after pauses that grow up to `longest_pause` seconds.

    `token` and `tls` are for the servers at `targets`: what is shown to them, and how to speak TLS
    with them. `listen_tokens` (SECRET or NAME=SECRET) are those that servers which dial out show,
    `listen_tls` has the files that they are shown. `insecure` means that tokens may travel in plain
    text, and that `listen_on` may be public without any of it.

    `ledger` is a file in which the trainer keeps what it has promised: attachment ids, rollouts that
    were sent, answers to chats, completions until `await completion.confirm()`. A trainer that is
    started again with the same ledger goes on where the other one ended, however that was; see
    Trainer.unconfirmed. Without one a completion counts as recorded when it has been handed to
    whoever waits for it, and a trainer that is killed forgets its rollouts.

    Raises OSError when the port is taken, LedgerError when the ledger cannot be opened, ValueError
    for a target that is none or an address that is not guarded enough.
    """
    named = [targets] if isinstance(targets, str) else targets
    return Trainer(
        named, policy, listen_on=listen_on, lost_after=lost_after, max_open_chats=max_open_chats, delta=delta, ttl=ttl,
        access=Access(token=token, tls=tls, insecure=insecure),
        security=Security.of(listen_tokens, listen_tls, insecure),
        ledger=ledger, longest_pause=longest_pause,
    )  # fmt: skip


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


class Trainer:
    """Made by attach().

    A completion counts as recorded when it has been handed to whoever waits for it; with a ledger
    when it stands there.
    """

    def __init__(
        self, targets: Sequence[str], policy: Policy, *, listen_on: str, lost_after: float, max_open_chats: int,
        delta: bool, ttl: float, access: Access, security: Security, ledger: str | Path | None = None,
        longest_pause: float = 10.0,
    ) -> None:  # fmt: skip
        for name, value in (
            ("lost_after", lost_after), ("max_open_chats", max_open_chats), ("ttl", ttl),
            ("longest_pause", longest_pause),
        ):  # fmt: skip
            if not value > 0:
                raise ValueError(f"{name}: {value} is not greater than 0")
        for target in targets:
            if target.startswith(("http://", "https://")) or ":" not in target:
                raise ValueError(f"target: {target!r} is not HOST:PORT, for example 127.0.0.1:50051")
            access.check_target(target)
        self._access = access
        self._security = security
        self._targets = list(dict.fromkeys(targets))
        self._listen_on = listen_on
        self._ttl = ttl
        self._pauses = min(0.25, longest_pause), longest_pause
        self._delta = delta
        self._options: dict[str, Any] = {"lost_after": lost_after, "max_open_chats": max_open_chats}
        self._policy = policy
        self._path = ledger
        self._ledger: Ledger | None = None
        self._book: ChatBook
        self._pool: Pool
        self._connections: Connections
        self._sweeper: asyncio.Task[None]
        self.address = ""
        """Where agent servers dial in, the port as bound; empty without `listen_on`."""

    async def __aenter__(self) -> "Trainer":
        if self._path is not None:
            self._ledger = await Ledger.open(self._path, self._ttl)
        try:
            await self._begin()
        except BaseException:
            if self._ledger is not None:
                await self._ledger.close()
            raise
        return self

    async def _begin(self) -> None:
        self._book = ChatBook(self._policy, self._ledger)
        self._pool = Pool(self._book, **self._options, ledger=self._ledger)
        self._connections = Connections(
            self._pool, self._attachment, self._targets, access=self._access, security=self._security,
            pauses=self._pauses,
        )  # fmt: skip
        if self._listen_on:
            try:
                self.address = self._connections.listen(self._listen_on)
            except BaseException:
                self._pool.close()
                raise
        kept = self._ledger.take_restored() if self._ledger is not None else []
        self._book.restore(kept, time.monotonic())
        self._connections.await_servers(kept)
        if self._ledger is not None:
            self._pool.restore(kept)
        await self._connections.begin()
        self._sweeper = asyncio.create_task(self._sweep())

    def _attachment(self, name: str, place: str) -> Attachment:
        return Attachment(name, self._pool, self._book, delta=self._delta, place=place, ledger=self._ledger)

    async def __aexit__(self, *exc: Any) -> None:
        self._connections.leave()
        try:
            await self._pool.servers.part()
            self._sweeper.cancel()
            await self._connections.close()
        finally:
            self._pool.close()
            if self._ledger is not None:
                await self._ledger.close()

    @property
    def servers(self) -> list[Server]:
        """The agent servers, attached or awaited."""
        return [
            Server(s.name, s.attached, s.window, len(s.rollouts), tuple(s.hello.agent_loops), s.hello.version,
                   s.hello.journal_id)
            for s in self._pool.servers
        ]  # fmt: skip

    async def rollout(self, request: RolloutRequest | None = None, *, together: str = "", **changes: Any) -> Completion:
        """Run a rollout, a RolloutRequest or its fields by name, and wait for its completion.

        A rollout of the same id that is not over is joined; with a ledger also one that is over and
        not confirmed, whatever its attempt now is. `together` names a group whose
        rollouts go to one server. Cancelling the last one who waits cancels the rollout. Raises
        the CallError that it is refused with, InvalidArgument naming the field, AlreadyExists
        for another request under its id, Unavailable when there is no agent server.
        """
        rollout = self._pool.submit(checked(request, changes), together=together)
        rollout.waiters += 1
        try:
            return await asyncio.shield(rollout.done)
        finally:
            rollout.waiters -= 1
            if not rollout.waiters:
                self._pool.give_up(rollout)

    async def run(
        self, requests: Requests, *, group_size: int = 1,
        max_in_flight: int = 256, together: bool = False,
    ) -> AsyncGenerator[Completion, None]:  # fmt: skip
        """Run rollouts and yield their completions as they come.

        With a `group_size` above 1 each request is run so many times: as ID-0, ID-1, ... in the
        group ID; `together` keeps a group's members on one server. A rollout that is refused is
        yielded as FAILED, with the reason. Leaving the loop cancels what is not over. Raises
        TypeError and InvalidArgument for a request that cannot be sent.
        """
        run = Run(self._pool, group_size=group_size, max_in_flight=max_in_flight, together=together)
        async with aclosing(run.completions(requests)) as completions:
            async for completion in completions:
                yield completion

    async def unconfirmed(self) -> AsyncGenerator[Completion, None]:
        """What an earlier process left in the ledger and nobody here has asked for, to its end.

        First the completions that were not confirmed, oldest first, then those of the rollouts that
        still run, as they end. What rollout() or run() ask for is theirs; leaving the loop cancels
        nothing. Empty without a ledger.
        """
        async with aclosing(left_over(self._pool)) as completions:
            async for completion in completions:
                yield completion

    async def cancel(self, rollout_id: str = "", *, group_id: str = "", reason: str = "") -> list[CancelResult]:
        """Cancel one rollout of this trainer's, a group, or, with neither given, all of them. Idempotent.

        Rollouts end CANCELLED; whoever waits for one gets that completion. Raises Unavailable where a server's
        disk cannot keep the cancel: it holds in that process all the same, and may be asked again.
        """
        if rollout_id and group_id:
            raise ValueError("cancel takes a rollout_id or a group_id, not both")
        asked = []
        for rollout in list(self._pool.rollouts.values()):
            group = rollout.request.group
            mine = group.id if group is not None else ""
            if rollout_id not in ("", rollout.request.rollout_id) or group_id not in ("", mine):
                continue
            rollout.cancelled = True
            if rollout.server is None:
                self._pool.end_here(rollout)
            else:  # by its id: a group, or all, may be other trainers' of the same owner as well
                request = control_pb2.CancelRequest(rollout_id=rollout.request.rollout_id, reason=reason)
                asked.append(rollout.server.cancels.ask(request))
        answers = await asyncio.gather(*asked)
        return [cancelled_from_wire(row) for answer in answers for row in answer.results]

    async def events(
        self, rollout_id: str, *, attempt: int = 0, after: int = 0, tokens: bool = False
    ) -> AsyncIterator[TrajectoryEvent]:
        """A rollout's events with numbers above `after`, then live, until none can follow. Survives breaks.

        Waits for a rollout that this trainer has not sent yet, or whose Init is not answered. Without `tokens` replies
        come without their token blocks. Raises NotFound when no server knows the rollout, and the CallError that it is
        refused with.
        """
        await asyncio.sleep(0)  # a task that was created just before this one may have it to submit
        held = self._pool.rollouts.get(rollout_id)
        if held is not None:
            await held.wait_until_opened()
        first = held.server if held is not None else None
        servers = [first] if first is not None else self._pool.servers.attached
        for server in servers:
            subscription = Subscription(rollout_id, attempt, after, tokens)
            server.subscriptions.begin(subscription)
            begun = False
            try:
                async for event in subscription.read(server.subscriptions.begin):
                    begun = True
                    yield event
                return
            except NotFound:
                if begun:
                    raise
            finally:
                server.subscriptions.end(subscription)
        raise NotFound(f"no agent server knows rollout {rollout_id}", kind="rollout", name=rollout_id)

    def pause(self) -> None:
        """Let no further chat come, for example while weights are swapped. What is open is answered."""
        self._pool.servers.paused = True
        self._pool.servers.grant()

    def resume(self) -> None:
        """Let chats come again."""
        self._pool.servers.paused = False
        self._pool.servers.grant()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(60.0, self._ttl / 4))
            self._book.sweep(time.monotonic() - self._ttl, keep=self._pool.rollouts)
