"""A trainer for tests that send their own Inits: answers callbacks and keeps outcomes until they are taken."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.network.tls import ServerTls
from osmosis_grpc.policies import Policy
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import outcome_pb2
from osmosis_grpc.protocol.errors import Internal, InvalidArgument
from osmosis_grpc.protocol.types import Receipt, RolloutOutcome
from osmosis_grpc.protocol.wire.outcome import outcome_from_wire
from osmosis_grpc.trainer.transports.callback.standalone_recorder import CallbackRecorder, Record


class CallbackTrainer(CallbackRecorder):
    """Keeps outcomes in memory, or gives them to `recorder`. Used with `async with`."""

    def __init__(
        self,
        policy: Policy,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        ttl: float = 7200.0,
        recorder: Record | None = None,
        tokens: str | Sequence[str] = (),
        tls: ServerTls | None = None,
        insecure: bool = False,
    ) -> None:
        security = ServerSecurity(tokens, tls=tls, insecure=insecure)
        super().__init__(policy, recorder or _record, listen=f"{host}:{port}", security=security, ttl=ttl)
        self._kept = recorder is None
        self._new: dict[str, RolloutOutcome] = {}
        self._again: dict[str, RolloutOutcome] = {}
        """Outcomes that came once more: an Init may have asked for them."""
        self._unreadable: dict[str, InvalidArgument] = {}
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def port(self) -> int:
        """The port as bound."""
        return int(self.address.rpartition(":")[2])

    async def outcome(self, rollout_id: str, timeout: float | None = None, *, attempt: int = 0) -> RolloutOutcome:
        """Take a rollout's outcome of this attempt or a higher one. Raises TimeoutError, Internal if unreadable."""

        def found() -> RolloutOutcome | None:
            if rollout_id in self._unreadable:
                raise Internal(f"the outcome of rollout {rollout_id}: {self._unreadable.pop(rollout_id)}")
            for kept in (self._new, self._again):
                if rollout_id in kept and kept[rollout_id].attempt >= attempt:
                    return kept.pop(rollout_id)
            return None

        async with asyncio.timeout(timeout):
            outcome = await self._wait(found)
        if outcome is None:
            raise RuntimeError("the trainer is closed: nothing more comes")
        return outcome

    async def outcomes(self) -> AsyncIterator[RolloutOutcome]:
        """Take outcomes as they come, until the trainer is closed."""
        while outcome := await self._wait(lambda: self._new.pop(next(iter(self._new))) if self._new else None):
            yield outcome

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        self._closed = True
        self._notify()

    async def complete(self, raw: outcome_pb2.RolloutOutcome, state: bytes, credential: str) -> Receipt:
        """See Receiver."""
        try:
            outcome = outcome_from_wire(raw, "outcome")
        except InvalidArgument as problem:
            self._unreadable[raw.rollout_id] = problem
            self._notify()
            raise
        receipt = await super().complete(raw, state, credential)
        if self._kept and receipt is Receipt.ALREADY_RECORDED and outcome.rollout_id not in self._new:
            self._again[outcome.rollout_id] = outcome
            self._notify()
        return receipt

    def recorded(self, outcome: RolloutOutcome) -> None:
        """Keep an outcome until it is taken."""
        super().recorded(outcome)
        if self._kept:
            self._new[outcome.rollout_id] = outcome
            self._notify()

    async def _wait(self, found: Callable[[], RolloutOutcome | None]) -> RolloutOutcome | None:
        """Return what is found as soon as it is there; None when the trainer is closed."""
        while (outcome := found()) is None and not self._closed:
            await self._changed.wait()
        return outcome

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def _record(outcome: RolloutOutcome, state: bytes, credential: str) -> None:
    """Record nothing: the trainer keeps the outcome."""
