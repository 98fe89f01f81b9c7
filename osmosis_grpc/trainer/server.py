"""TrainerService over grpc.aio: answers chats with a policy and receives completions."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from osmosis_grpc import supervise
from osmosis_grpc._gen.osmosis.rollout.v1 import rollout_pb2, services_pb2_grpc
from osmosis_grpc._gen.osmosis.rollout.v1 import trainer_pb2 as pb
from osmosis_grpc.errors import CallError, InvalidArgument, TrainerFailed, Unavailable, Unimplemented
from osmosis_grpc.link.call_metrics import Unregistered
from osmosis_grpc.link.callback_credentials import CallbackKeys
from osmosis_grpc.link.channel_options import server_options
from osmosis_grpc.link.handlers import Registrar, metadata_value
from osmosis_grpc.link.listen import listen, start
from osmosis_grpc.link.server_security import CallbackAuthenticator, ServerSecurity, check_for_rollout
from osmosis_grpc.link.tls import ServerTls
from osmosis_grpc.link.tokens import bearer
from osmosis_grpc.policies import Policy
from osmosis_grpc.policies.threads import check_policy
from osmosis_grpc.storage.ledger import Ledger, SqliteLedger
from osmosis_grpc.supervise import Supervisor
from osmosis_grpc.trainer.chats.cache import SWEEP, ChatCache
from osmosis_grpc.trainer.chats.replies import reply_of
from osmosis_grpc.trainer.chats.sampler import entered
from osmosis_grpc.trainer.collector import TrainerMetrics, prometheus
from osmosis_grpc.trainer.earlier_runs import EarlierOutcomes
from osmosis_grpc.trainer.inbox import Inbox
from osmosis_grpc.trainer.transports.callback.recorder import RECORD
from osmosis_grpc.trainer.unconfirmed import UnconfirmedOutcomes
from osmosis_grpc.trainer.untrainable import UntrainableOutcomes
from osmosis_grpc.types import Callback, CallbackTls, Completion, Outcome
from osmosis_grpc.wire.rollout import completion_from_wire
from osmosis_grpc.wire.trainer import chat_from_wire, outcome_to_wire

if TYPE_CHECKING:
    from osmosis_grpc.observability.exposition import PrometheusCollector

log = logging.getLogger(__name__)

SETTLING = 5.0
"""Seconds that a trainer which closes waits for outcomes that RolloutClient.wait() has returned already."""

Recorder = Callable[[Completion, bytes, str], Awaitable[None]]
"""Takes a completion, the state of its callback, and the credential it came with."""


class TrainerServer:
    """Hosts a policy. Used as `async with TrainerServer(policy) as trainer`.

    A completion counts as recorded when this object holds it; it keeps it until completion()
    or completions() hands it over, and a process that is killed loses it. One that RolloutClient.wait()
    has returned on the same event loop counts as handed over. While 16,384 are held that nobody takes,
    servers keep the others. With a `ledger`, a file,
    it is recorded when it stands there, and stays there until `await completion.confirm()`: a
    trainer that is started again with the same ledger yields again what was not confirmed, and
    answers chats that were answered before as they were. Its address may be another one: an equal
    Init with its callback re-points the rollouts. What is known of a rollout is forgotten `ttl` seconds after
    it was last heard of; make that twice the server's record TTL or more.

    With a `recorder` completions go there instead: it is awaited with a completion, its
    callback's state and its credential, and the completion counts as recorded when it returns.
    What it raises is told to the server, which sends the completion again, or, for
    InvalidArgument, Aborted and Unimplemented, gives it up. A recorder has its own memory and goes
    with no ledger.

    Calls have to show a credential that callback() made, or, with `tokens` (SECRET or NAME=SECRET), one of them. What
    callback() made is good for as long as the tokens are; without tokens, for the life of this object or of its ledger.
    `tls` has the files of a server that speaks TLS. Raises OSError when the port
    is taken, LedgerError when the ledger cannot be opened, ValueError when the host is public and
    not guarded enough for that, TypeError for a policy that is not callable and for a `tls` that is
    not ServerTls.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        ttl: float = 7200.0,
        recorder: Recorder | None = None,
        ledger: str | Path | None = None,
        tokens: str | Sequence[str] = (),
        tls: ServerTls | None = None,
        insecure: bool = False,
    ) -> None:
        if recorder is not None and ledger is not None:
            raise ValueError("a recorder and a ledger: completions go to one of them")
        check_policy(policy)
        self._security = ServerSecurity(tokens, tls=tls, insecure=insecure)
        self._security.check_host(host)
        self.port = port
        self._host = host
        self._ttl = ttl
        self._recorder = recorder
        self._recording: dict[tuple[str, int, str], asyncio.Future[None]] = {}
        self._policy = policy
        self._path = ledger
        self._ledger: Ledger | None = None
        self._run_id = secrets.token_hex(16)
        self._keys = self._security.tokens.callbacks if self._security.tokens else CallbackKeys([secrets.token_hex(32)])
        """Of the tokens, or of a secret of this trainer's own, which its ledger keeps."""
        self._earlier = EarlierOutcomes()
        self._untrainable = UntrainableOutcomes()
        self.supervisor = Supervisor("the callback trainer")
        """Owns the background work; its `failure` is set once that has failed."""
        self._cache = ChatCache(policy, None, self.supervisor)
        self._inbox = Inbox(self._handed_out, self._expects)
        self._server: grpc.aio.Server
        self._resources: AsyncExitStack

    @property
    def address(self) -> str:
        """HOST:PORT, the port as bound."""
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    def callback(
        self,
        *,
        rollout_id: str = "",
        target: str = "",
        server_name: str = "",
        credential: str = "",
        state: bytes = b"",
        delta: bool = True,
    ) -> Callback:
        """Where rollouts are to call back; hand it to RolloutClient.init.

        `target` is HOST:PORT as the agent server reaches this trainer, when that is another than it
        listens on. The callback gets a credential of its own, which is good for nothing but callbacks to this trainer;
        RolloutClient.init makes of it one that is good for its rollout alone, as `rollout_id` does. Calls without such
        a credential are refused, so a callback made by hand needs one of this trainer's tokens. `server_name` is the
        name in this trainer's certificate, when that is another than the target's host. With `delta`
        chats refer to earlier ones, which this trainer knows, instead of repeating them; without it
        every chat tells its whole history. Raises ValueError for a credential that would be refused.
        """
        if not self.port:
            raise RuntimeError("the trainer does not listen yet: use `async with TrainerServer(...)`")
        if not credential:
            credential = self._keys.make(rollout_id)
        elif self._security.tokens.owner(credential) is None and not self._keys.made(credential):
            raise ValueError("credential: is none of this trainer's tokens, so callbacks with it would be refused")
        tls = CallbackTls(server_name) if self._security.tls else None
        return Callback(
            target=target or self.address, credential=credential, state=state, delta=delta, tls=tls, run_id=self._run_id
        )

    async def completion(self, rollout_id: str, timeout: float | None = None, *, attempt: int = 0) -> Completion:
        """Wait for a rollout's completion, of this attempt or a higher one, and take it.

        After another Init of an ended rollout it may be taken once more: its server sends it again.
        Waits for as long as nothing comes, or `timeout` seconds, then raises TimeoutError. That a
        server is gone is noticed by RolloutClient.wait, not here. Raises Internal when the rollout's outcome
        cannot be read, TrainerFailed when the trainer has failed.
        """
        return await self._inbox.take(rollout_id, attempt, timeout)

    async def completions(self) -> AsyncIterator[Completion]:
        """Take completions that nobody waits for by name, as they come, until the trainer is closed.

        Those that RolloutClient.wait() has returned on this event loop are not among them.
        """
        async for completion in self._inbox.all():
            yield completion

    def metrics(self) -> dict[str, float]:
        """Returns counts, means and percentiles by name; see Trainer.metrics."""
        sampler = self._cache.sampler
        return self._cache.metrics.read(
            open_rollouts=self._cache.open, open_chats=sampler.in_flight, version=sampler.version
        )

    @property
    def source(self) -> TrainerMetrics:
        """The same by family, with histograms and the RPCs, as collector() has them."""
        return TrainerMetrics(self._cache.metrics, self.metrics, self.supervisor.failures)

    def collector(self) -> "PrometheusCollector":
        """Returns a collector for prometheus_client; see Trainer.collector. Raises MissingExtraError."""
        return prometheus(self.source)

    async def __aenter__(self) -> "TrainerServer":
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.supervisor.close)
            if self._path is not None:
                self._ledger = await SqliteLedger.open(self._path, self._ttl, self.supervisor)
                stack.push_async_callback(self._ledger.close)
            await stack.enter_async_context(entered(self._policy))
            await self._begin()
            self._resources = stack.pop_all()
        return self

    async def _begin(self) -> None:
        if self._ledger is not None:
            self._cache = ChatCache(self._policy, self._ledger, self.supervisor)
            self._cache.restore(self._ledger.take_restored(), time.monotonic())
            self._run_id = self._ledger.callback_run()
            if not self._security.tokens:
                self._keys = CallbackKeys([self._ledger.callback_secret()])
        self._inbox.open(UnconfirmedOutcomes(self._ledger) if self._ledger is not None else None)
        self.supervisor.add_listener(self._failed)
        self._server = grpc.aio.server(options=server_options())
        calls = self._cache.metrics.answered_calls
        services: Any = Registrar(self._server, CallbackAuthenticator(self._security, self._keys), calls)
        services_pb2_grpc.add_TrainerServiceServicer_to_server(_Servicer(self), services)
        self._server.add_generic_rpc_handlers((Unregistered(calls),))
        self.port = int(listen(self._server, self.address, self._security).rpartition(":")[2])
        await start(self._server)
        self.supervisor.every(SWEEP, min(60.0, self._ttl / 4), self._sweep)

    def _handed_out(self, completion: Completion) -> None:
        self._earlier.count(completion)
        self._untrainable.count(completion)

    def _expects(self, rollout_id: str) -> bool:
        return self._recorder is None and self._cache.expects(rollout_id)

    def _failed(self, error: BaseException) -> None:
        self._inbox.fail(TrainerFailed(self.supervisor.failed_job, error))

    async def __aexit__(self, *exc: Any) -> None:
        try:
            await self._inbox.settle(SETTLING)
            await self._server.stop(0.5)
        finally:
            self._cache.close()
            await self._resources.aclose()
        for task in list(self._recording.values()):
            task.cancel()
        self._earlier.report()
        self._untrainable.report()
        self._inbox.close()

    def _sweep(self) -> None:
        self._cache.sweep(time.monotonic() - self._ttl)

    async def _complete(
        self, completion: Completion, raw: rollout_pb2.Completion, state: bytes, credential: str
    ) -> Outcome:
        if self._ledger is not None:
            outcome = await self._commit(completion, raw)
        else:
            outcome = await self._keep(completion, state, credential)
        if outcome is Outcome.RECORDED:
            self._cache.metrics.ended(completion, self._cache.sampler.version)
        if outcome is Outcome.ALREADY_RECORDED and self._recorder is None:
            self._inbox.came_again(completion)
        return outcome

    async def _keep(self, completion: Completion, state: bytes, credential: str) -> Outcome:
        """Record a completion in memory, or with the recorder."""
        if self._cache.is_new(completion, time.monotonic()):
            if self._recorder is None:
                self._inbox.check_room(completion.rollout_id)
            else:
                await self._record_elsewhere(self._recorder, completion, state, credential)
        outcome, recorded = self._cache.complete(completion, time.monotonic())
        if recorded is not None and self._recorder is None:
            self._inbox.put(recorded)
        return outcome

    async def _commit(self, completion: Completion, raw: rollout_pb2.Completion) -> Outcome:
        """Record a completion in the ledger."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome | CallError, recorded: Completion | None) -> None:
            if recorded is not None:
                self._inbox.put(recorded)
            if future.done():  # its call was cut
                return
            if isinstance(outcome, CallError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self._cache.record(completion, raw, done)
        return await future

    async def _record_elsewhere(
        self, recorder: Recorder, completion: Completion, state: bytes, credential: str
    ) -> None:
        """Hand a result to the recorder once; who sends it again meanwhile joins."""
        key = (completion.rollout_id, completion.attempt, completion.result_id)
        task = self._recording.get(key)
        if task is None:
            task = supervise.future(RECORD, recorder(completion, state, credential))
            self._recording[key] = task
            task.add_done_callback(lambda done: (self._recording.pop(key, None), done.cancelled() or done.exception()))
        await asyncio.wait({task})
        if task.cancelled():
            raise Unavailable("the trainer is closing")
        task.result()


class _Servicer(services_pb2_grpc.TrainerServiceServicer):
    """The RPCs: from the wire, ask the cache, to the wire."""

    def __init__(self, trainer: TrainerServer) -> None:
        self._trainer = trainer

    async def Chat(self, request: pb.ChatRequest, context: Any) -> bytes:  # type: ignore[override] # sent as it is
        credential = bearer(metadata_value(context, "authorization"))
        chat = chat_from_wire(request, context.time_remaining(), credential)
        check_for_rollout(credential, chat.rollout_id)
        asked = self._trainer._cache.chat(chat, time.monotonic())
        if not asked.done.done():
            await asyncio.wait({asked.done})
        asked.done.result()
        return reply_of(asked, chat.continues)

    async def Accept(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        raise Unimplemented("this trainer takes callbacks; Trainer(..., listen=HOST:PORT) takes agent servers")

    async def Complete(self, request: pb.CompleteRequest, context: Any) -> pb.CompleteResponse:
        credential = bearer(metadata_value(context, "authorization"))
        check_for_rollout(credential, request.completion.rollout_id)
        try:
            completion = completion_from_wire(request.completion, "completion")
        except InvalidArgument as error:
            self._trainer._inbox.refuse(request.completion.rollout_id, error)
            raise
        outcome = await self._trainer._complete(completion, request.completion, request.state, credential)
        return pb.CompleteResponse(outcome=outcome_to_wire(outcome))
