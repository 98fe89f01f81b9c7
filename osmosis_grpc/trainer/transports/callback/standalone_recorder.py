"""CallbackRecorder answers chats with a policy, and calls a function with each outcome. The gateway uses it.

It starts no rollouts, and has no ledger: storing the outcomes is up to the function.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from osmosis_grpc import supervise
from osmosis_grpc.network.bearer_tokens import CallbackKeys
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.policies import Policy
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, outcome_pb2
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import Callback, ChatRequest, Receipt, RolloutOutcome
from osmosis_grpc.protocol.wire.outcome import outcome_from_wire
from osmosis_grpc.supervise import SYSTEM, OnFailure, Supervisor, System, job
from osmosis_grpc.trainer.chats.policy_table import PolicyTable
from osmosis_grpc.trainer.chats.rollout_cache import SWEEP, RolloutCache
from osmosis_grpc.trainer.chats.sampler import entered
from osmosis_grpc.trainer.metrics import TrainerMetrics
from osmosis_grpc.trainer.transports.callback.listener import CallbackListener, Receiver

RECORD = job("trainer.recorder", OnFailure.RAISE)

Record = Callable[[RolloutOutcome, bytes, str], Awaitable[None]]
"""Takes an outcome, the state of its callback, and the credential of the call."""


class CallbackRecorder(Receiver):
    """Answers callbacks. Use it with `async with`.

    `policy` answers all chats, whatever policy they name. `record` is awaited with each outcome, which counts as
    recorded when `record` returns. If `record` raises an error, the agent server gets the error and sends the outcome
    again, except after InvalidArgument, Aborted and Unimplemented. A rollout is forgotten `ttl` seconds after its last
    call. Raises OSError if the port of `listen` is taken, ValueError for an address that needs TLS or tokens, and
    TypeError for a policy that is not callable.
    """

    def __init__(
        self,
        policy: Policy,
        record: Record,
        *,
        listen: str = "127.0.0.1:0",
        security: ServerSecurity | None = None,
        ttl: float = 7200.0,
        system: System = SYSTEM,
    ) -> None:
        policies = PolicyTable(policy, any_name=True)
        security = security or ServerSecurity()
        self._record = record
        self._recording: dict[tuple[str, int, str], asyncio.Future[None]] = {}
        self._policy = policy
        self._ttl = ttl
        self.supervisor = Supervisor("the callback recorder", system=system)
        """Owns the background work of this object."""
        self.cache = RolloutCache(policies, None, self.supervisor)
        keys = security.tokens.callbacks if security.tokens else CallbackKeys([system.new_secret()])
        self._listener = CallbackListener(self, listen, security, keys, system.new_id())
        self._resources: AsyncExitStack

    @property
    def address(self) -> str:
        """HOST:PORT with the bound port."""
        return self._listener.address

    def callback(self, **options: Any) -> Callback:
        """Return a callback to send with an Init; see CallbackListener.callback."""
        return self._listener.callback(**options)

    @property
    def source(self) -> TrainerMetrics:
        """The metrics as families."""
        return TrainerMetrics(self.cache.metrics, self.metrics, self.supervisor.failures)

    def metrics(self) -> dict[str, float]:
        """Return counts, means and percentiles by name; see Trainer.metrics."""
        return self.cache.read_metrics(self.cache.open)

    async def __aenter__(self) -> "CallbackRecorder":
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.supervisor.close)
            await stack.enter_async_context(entered(self._policy))
            stack.callback(self.cache.close)
            self._listener.listen(self.cache.metrics.answered_calls, self.supervisor.system.new_id)
            stack.push_async_callback(self._listener.stop)
            await self._listener.start()
            ttl = self._ttl
            self.supervisor.every(SWEEP, min(60.0, ttl / 4), lambda: self.cache.sweep(self.cache.now() - ttl))
            self._resources = stack.pop_all()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._resources.aclose()
        for task in list(self._recording.values()):
            task.cancel()

    async def chat(self, request: ChatRequest) -> bytes:
        return await self.cache.answer(request)

    def abandon(self, request: chat_pb2.AbandonChatRequest) -> None:
        self.cache.abandon(request.rollout_id, request.attempt, request.sample, request.chat_number)

    async def complete(self, raw: outcome_pb2.RolloutOutcome, state: bytes, credential: str) -> Receipt:
        outcome = outcome_from_wire(raw, "outcome")
        if self.cache.rollout(outcome.rollout_id, outcome.attempt, self.cache.now()).result_id is None:
            await self._record_once(outcome, state, credential)
        receipt, recorded = self.cache.complete(outcome, self.cache.now())
        if recorded is not None:
            self.recorded(recorded)
        return receipt

    def recorded(self, outcome: RolloutOutcome) -> None:
        """Count a recorded outcome. Its samples are assembled from the chats that this recorder answered."""
        self.cache.metrics.ended(outcome, self.cache.sampler.version)

    async def _record_once(self, outcome: RolloutOutcome, state: bytes, credential: str) -> None:
        key = (outcome.rollout_id, outcome.attempt, outcome.result_id)
        task = self._recording.get(key)
        if task is None:
            task = supervise.future(RECORD, self._record(outcome, state, credential))
            self._recording[key] = task
            task.add_done_callback(lambda done: (self._recording.pop(key, None), done.cancelled() or done.exception()))
        await asyncio.wait({task})
        if task.cancelled():
            raise Unavailable("the trainer is closing")
        task.result()
