"""SyncTrainer: a Trainer for code that is not async, for example scripts, notebooks and TRL's hooks.

The Trainer runs on an event loop in its own thread (loop_thread.py). If you add a method to Trainer, add a line here
that uses `_waits` for a coroutine or `_iterates` for an async generator.
"""

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import closing, contextmanager
from functools import partial, wraps
from operator import length_hint
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from osmosis_grpc.policies.threads import ThreadedPolicy, is_async
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.protocol.types.outcome import Confirmable
from osmosis_grpc.supervise import DaemonThreads
from osmosis_grpc.trainer.chats.policy_table import Policies
from osmosis_grpc.trainer.loop_thread import LoopThread
from osmosis_grpc.trainer.server_availability import Server
from osmosis_grpc.trainer.trainer import Trainer

if TYPE_CHECKING:
    from osmosis_grpc.observability.exposition import PrometheusCollector

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_INTERRUPT_LIMIT = 10.0
"""After Ctrl-C, closing the trainer may take at most this many seconds."""
_CANCEL_LIMIT = 2.0
"""Of that time, the trainer waits at most this many seconds for the answers to its cancels."""
_END = object()


def _waits(method: Callable[Concatenate[Trainer, P], Awaitable[T]]) -> Callable[Concatenate["SyncTrainer", P], T]:

    @wraps(method)
    def call(self: "SyncTrainer", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with _requests_on_thread(args, kwargs) as (args, kwargs):
            return self._thread.call(lambda: method(self._trainer, *args, **kwargs))

    return call


def _iterates(
    method: Callable[Concatenate[Trainer, P], AsyncIterator[T]],
) -> Callable[Concatenate["SyncTrainer", P], Generator[T, None, None]]:

    @wraps(method)
    def iterate(self: "SyncTrainer", /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        with _requests_on_thread(args, kwargs) as (args, kwargs):
            yield from self._thread.iterate(lambda: method(self._trainer, *args, **kwargs))

    return iterate


def _typed_as(_: Callable[P, Any]) -> Callable[[Callable[..., None]], Callable[Concatenate["SyncTrainer", P], None]]:
    """Return a decorator that makes type checkers see an __init__ with the parameters of another callable."""

    def typed(init: Callable[..., None]) -> Callable[Concatenate["SyncTrainer", P], None]:
        return init

    return typed


class SyncTrainer:
    """A Trainer whose methods are not async. It has the parameters and the methods of Trainer.

        with SyncTrainer(["127.0.0.1:50051"], policy) as trainer:
            for outcome in trainer.run(requests, max_in_flight=64):
                train_on(outcome)

    SyncTrainer has its own thread with an event loop, so it also works in a notebook, where another loop already runs.
    In a notebook, call open() and close() instead of using `with`. Any thread may call the methods. An async policy
    runs on this event loop. Each sync policy runs on its own thread, one call at a time; ThreadedPolicy(policy,
    threads=16) gives it more threads. Each iterator of requests is read on its own thread.

    Ctrl-C cancels the unfinished rollouts, closes the trainer and raises KeyboardInterrupt. The methods raise the
    errors of Trainer.

    Args:
        servers: As in Trainer.
        policy: As in Trainer.
        **options: The other parameters of Trainer.
    """

    @_typed_as(Trainer)
    def __init__(self, servers: Any, policy: Policies, **options: Any) -> None:
        self._trainer = Trainer(servers, _off_loop(policy), **options)
        self._thread = LoopThread("osmosis-trainer")

    rollout = _waits(Trainer.rollout)
    wait_for_server = _waits(Trainer.wait_for_server)
    cancel = _waits(Trainer.cancel)
    pause = _waits(Trainer.pause)
    run = _iterates(Trainer.run)
    unconfirmed = _iterates(Trainer.unconfirmed)
    events = _iterates(Trainer.events)
    groups = _iterates(Trainer.groups)
    evaluate = _waits(Trainer.evaluate)
    annotate = _waits(Trainer.annotate)
    write_note = _waits(Trainer.write_note)

    def confirm(self, what: Confirmable | Mapping[str, Any]) -> None:
        """See Trainer.confirm."""
        self._thread.call(lambda: self._trainer.confirm(what))

    def position(self) -> dict[str, Any]:
        """See Trainer.position."""
        return self._on_loop(self._trainer.position)

    def resume(self, *, version: str | int | None = None) -> None:
        """See Trainer.resume."""
        self._on_loop(lambda: self._trainer.resume(version=version))

    def read_note(self, name: str) -> dict[str, Any] | None:
        """See Trainer.read_note."""
        return self._on_loop(lambda: self._trainer.read_note(name))

    def metrics(self) -> dict[str, float]:
        """See Trainer.metrics."""
        return self._on_loop(self._trainer.metrics)

    def collector(self) -> "PrometheusCollector":
        """See Trainer.collector."""
        return self._trainer.collector()

    @property
    def servers(self) -> list[Server]:
        """See Trainer.servers."""
        return self._on_loop(lambda: self._trainer.servers)

    @property
    def address(self) -> str:
        """See Trainer.address."""
        return self._trainer.address

    def open(self) -> "SyncTrainer":
        """Start the thread and the trainer."""
        self._thread.start()
        try:
            self._thread.call(self._trainer.__aenter__)
        except BaseException:
            self._thread.stop()
            raise
        return self

    def close(self) -> None:
        """Close the trainer and end the thread. Unfinished rollouts stay in the ledger. Idempotent."""
        self._close(interrupted=False)

    def __enter__(self) -> "SyncTrainer":
        return self.open()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close(interrupted=isinstance(error, KeyboardInterrupt))

    def _on_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._thread.call(call)

    def _close(self, *, interrupted: bool) -> None:
        if not self._thread.running:
            return
        try:
            self._thread.call(partial(self._end, interrupted), _INTERRUPT_LIMIT if interrupted else None)
        except TimeoutError:
            log.warning("the trainer did not close within %g s", _INTERRUPT_LIMIT)
        finally:
            self._thread.stop()

    async def _end(self, interrupted: bool) -> None:
        try:
            if interrupted:
                async with asyncio.timeout(_CANCEL_LIMIT):
                    await self._trainer.cancel(everything=True, reason="the trainer was interrupted")
        except (CallError, TimeoutError) as error:
            log.warning("not every agent server answered the cancel: %s", error or "no answer in time")
        finally:
            await self._trainer.__aexit__(None, None, None)


class _Reader(Generic[T]):
    """An async iterator that reads an iterable on its own thread."""

    def __init__(self, values: Iterable[T]) -> None:
        self._values = values
        self._thread = DaemonThreads()

    def __length_hint__(self) -> int:
        return length_hint(self._values, 0)

    async def __aiter__(self) -> AsyncGenerator[T, None]:
        iterator = await self._thread.run(partial(iter, self._values))
        while (value := await self._thread.run(partial(next, iterator, _END))) is not _END:
            yield cast("T", value)

    def close(self) -> None:
        """End the thread after it has read the current value."""
        self._thread.close()


@contextmanager
def _requests_on_thread(args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the arguments of a call, with an iterator of requests replaced by a _Reader.

    So the iterator may block, and may use the SyncTrainer. The requests are the first argument, or the argument
    `requests`.
    """
    requests = args[0] if args else kwargs.get("requests")
    if not isinstance(requests, Iterable) or isinstance(requests, Collection):
        yield args, kwargs
        return
    with closing(_Reader(requests)) as reader:
        yield ((reader, *args[1:]), kwargs) if args else (args, kwargs | {"requests": reader})


def _off_loop(policy: Policies) -> Policies:
    """Return the policies. Each sync policy gets its own thread: only one, even if it has several names."""
    if not isinstance(policy, Mapping):
        return policy if is_async(policy) else ThreadedPolicy(policy)
    made = {id(each): each if is_async(each) else ThreadedPolicy(each) for each in policy.values()}
    return {name: made[id(each)] for name, each in policy.items()}
