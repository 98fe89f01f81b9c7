"""A trainer for tests that send their own Inits: answers callbacks and keeps completions until they are taken."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from osmosis_grpc._gen.osmosis.rollout.v1 import rollout_pb2
from osmosis_grpc.errors import Internal, InvalidArgument
from osmosis_grpc.link.server_security import ServerSecurity
from osmosis_grpc.link.tls import ServerTls
from osmosis_grpc.policies import Policy
from osmosis_grpc.trainer.transports.callback.recorder import CallbackRecorder, Record
from osmosis_grpc.types import Completion, Outcome


class CallbackTrainer(CallbackRecorder):
    """Keeps completions in memory, or gives them to `recorder`. Used with `async with`."""

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
        self._new: dict[str, Completion] = {}
        self._again: dict[str, Completion] = {}
        """Completions that came once more: an Init may have asked for them."""
        self._unreadable: dict[str, InvalidArgument] = {}
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def port(self) -> int:
        """The port as bound."""
        return int(self.address.rpartition(":")[2])

    async def completion(self, rollout_id: str, timeout: float | None = None, *, attempt: int = 0) -> Completion:
        """Take a rollout's completion of this attempt or a higher one. Raises TimeoutError, Internal if unreadable."""

        def found() -> Completion | None:
            if rollout_id in self._unreadable:
                raise Internal(f"the outcome of rollout {rollout_id}: {self._unreadable.pop(rollout_id)}")
            for kept in (self._new, self._again):
                if rollout_id in kept and kept[rollout_id].attempt >= attempt:
                    return kept.pop(rollout_id)
            return None

        async with asyncio.timeout(timeout):
            completion = await self._wait(found)
        if completion is None:
            raise RuntimeError("the trainer is closed: nothing more comes")
        return completion

    async def completions(self) -> AsyncIterator[Completion]:
        """Take completions as they come, until the trainer is closed."""
        while completion := await self._wait(lambda: self._new.pop(next(iter(self._new))) if self._new else None):
            yield completion

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        self._closed = True
        self._notify()

    async def complete(
        self, completion: Completion, raw: rollout_pb2.Completion, state: bytes, credential: str
    ) -> Outcome:
        """See Receiver."""
        outcome = await super().complete(completion, raw, state, credential)
        if self._kept and outcome is Outcome.ALREADY_RECORDED and completion.rollout_id not in self._new:
            self._again[completion.rollout_id] = completion
            self._notify()
        return outcome

    def recorded(self, completion: Completion) -> None:
        """Keep a completion until it is taken."""
        super().recorded(completion)
        if self._kept:
            self._new[completion.rollout_id] = completion
            self._notify()

    def unreadable(self, rollout_id: str, problem: InvalidArgument) -> None:
        """See Receiver."""
        self._unreadable[rollout_id] = problem
        self._notify()

    async def _wait(self, found: Callable[[], Completion | None]) -> Completion | None:
        """Return what is found as soon as it is there; None when the trainer is closed."""
        while (completion := found()) is None and not self._closed:
            await self._changed.wait()
        return completion

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def _record(completion: Completion, state: bytes, credential: str) -> None:
    """Record nothing: the trainer keeps the completion."""
