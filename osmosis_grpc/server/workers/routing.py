"""Routes a call that reaches one worker to the workers that must answer it. RULES has the rule of each method.

A rule gets the name of the method, the request and its context. It returns the answer of one worker, or merges the
answers of all workers.
"""

import hashlib
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

from osmosis_grpc.engine import Engine
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.rollout_pb2 import InitRequest
from osmosis_grpc.protocol.errors import CallError, DeadlineExceeded
from osmosis_grpc.protocol.wire import control as wire
from osmosis_grpc.protocol.wire.methods import METHODS
from osmosis_grpc.server.servicer import Access, RolloutServicer
from osmosis_grpc.server.workers.merged_answers import merged_events, merged_page
from osmosis_grpc.server.workers.sibling_server import find, numbered_page
from osmosis_grpc.server.workers.siblings import FIND, LIST, Siblings, WorkerAway, patient, raise_first, results

AWAY = 30.0
"""A worker that has not answered for this many seconds counts as gone. A restart takes only a few."""


class Workers:
    """One worker's access to all workers, itself included.

    Args:
        engine: The engine of this worker.
        siblings: The other workers.
        local: Answers for this worker.
        access: Says who calls.
    """

    def __init__(self, engine: Engine, siblings: Siblings, local: RolloutServicer, access: Access) -> None:
        self.engine = engine
        self.siblings = siblings
        self.local = local
        self.owner_of: Callable[[Any], str] = access.authenticator() or (lambda context: "")
        self.check_admin = access.check_admin
        self._last_infos: dict[int, tuple[float, pb.GetServerInfoResponse]] = {}
        """The last description of each other worker, and its time."""

    @property
    def all(self) -> list[int]:
        """The numbers of all workers. This one is the first, so that it checks a request before the others get it."""
        return [self.siblings.config.index, *self.siblings.others]

    def infos(self, answers: dict[int, Any]) -> dict[int, pb.GetServerInfoResponse]:
        """Return the answers of other workers to GetServerInfo.

        While a worker restarts, use its last answer for up to AWAY seconds.
        """
        now = self.engine.supervisor.system.monotonic()
        self._last_infos |= {worker: (now, info) for worker, info in answers.items() if not isinstance(info, CallError)}
        return {worker: info for worker, (since, info) in self._last_infos.items() if now - since < AWAY}

    def is_local(self, worker: int) -> bool:
        """Return whether a worker is this one."""
        return worker == self.siblings.config.index

    async def at(self, worker: int, name: str, request: Any, context: Any) -> Any:
        """Call a method at a worker."""
        if self.is_local(worker):
            return await getattr(self.local, name)(request, context)
        return await self.siblings.call(worker, METHODS[name], request, self.owner_of(context), context)

    async def each(self, name: str, request: Any, context: Any) -> dict[int, Any]:
        """Call a method at all workers. Return their answers or CallErrors, but raise an error of this worker."""
        here, *others = self.all
        found = {here: await self.at(here, name, request, context)}
        calls = (self.at(worker, name, request, context) for worker in others)
        return found | dict(zip(others, await results(calls), strict=True))

    async def find(self, owner: str, rollout_id: str, attempt: int = 0) -> dict[int, Any]:
        """Return for each worker the result of its sibling_server.find(), or its CallError."""
        here, *others = self.all
        found: dict[int, Any] = {here: find(self.engine, owner, rollout_id, attempt)}
        request = pb.GetRolloutRequest(rollout_id=rollout_id, attempt=attempt)
        answers = await results(self.siblings.call(worker, FIND, request, owner) for worker in others)
        return found | {
            worker: getattr(answer, "value", answer) for worker, answer in zip(others, answers, strict=True)
        }

    async def holder(self, owner: str, rollout_id: str, attempt: int = 0) -> int:
        """Return the worker that has a rollout of the owner, or this worker if none has it.

        Wait for restarting workers that may have it. Raises Unavailable if one does not come back.
        """

        async def look() -> int:
            found = await self.find(owner, rollout_id, attempt)
            worker = _highest(found)
            if worker is None:
                raise_first(found)
            return self.siblings.config.index if worker is None else worker

        return await patient(look)

    async def placed(self, owner: str, rollout_id: str, key: str, fork: str = "") -> int:
        """Return the worker for an Init.

        Prefer the worker that has the rollout, then the one that has the rollout `fork`, of which it is a fork. Else
        choose by the hash of `key`, so that equal keys give the same worker. Wait for the chosen worker if it
        restarts. Raises WorkerAway if it does not come back.
        """

        async def look() -> int:
            found = await self.find(owner, rollout_id)
            known = {worker: abs(value) for worker, value in found.items() if isinstance(value, int)}
            worker = _highest(known)
            if worker is None and fork:
                worker = await self.holder(owner, fork)
            if worker is None:
                worker = hashed(key, self.siblings.config.accepting)
            raise_first({worker: found[worker]})
            return worker

        return await patient(look)

    async def page(self, worker: int, owner: str, request: pb.ListRolloutsRequest) -> pb.ListRolloutsResponse:
        """Return a page of one worker, with the positions of its rows.

        Wait for a restarting worker, because a list without its rollouts would be wrong.
        """
        if self.is_local(worker):
            return await numbered_page(self.engine, owner, request)
        answer: pb.ListRolloutsResponse = await patient(lambda: self.siblings.call(worker, LIST, request, owner))
        return answer

    def stream(self, worker: int, request: pb.StreamEventsRequest, context: Any) -> AsyncGenerator[Any, None]:
        """Yield the events of one worker."""
        if self.is_local(worker):
            return self.local.StreamEvents(request, context)
        return self.siblings.events(worker, request, self.owner_of(context))


async def at_its_worker(workers: Workers, name: str, request: Any, context: Any) -> Any:
    """Forward a call about one rollout to the worker that has it."""
    worker = await workers.holder(workers.owner_of(context), request.rollout_id, request.attempt)
    return await workers.at(worker, name, request, context)


async def place(workers: Workers, name: str, request: InitRequest, context: Any) -> Any:
    """Start a rollout. The rollouts of a group run at one worker, because their grader needs all of them.

    If the chosen worker does not answer, it may have started the rollout. So the error is DeadlineExceeded and not
    Unavailable, after which a caller would try another server, and repeating the Init is left to the caller.
    """
    spec = request.spec
    key = spec.group.id or spec.idempotency_key or request.rollout_id
    try:
        worker = await workers.placed(workers.owner_of(context), request.rollout_id, key, spec.fork.rollout_id)
        return await workers.at(worker, name, request, context)
    except WorkerAway as error:
        raise possibly_started(error) from None


def possibly_started(error: WorkerAway) -> DeadlineExceeded:
    """Return the error for an Init whose worker does not answer."""
    text = f"{error}; it possibly has the rollout: send the same request to this server again"
    return DeadlineExceeded(text, retry_after=error.retry_after)


async def cancel(workers: Workers, name: str, request: pb.CancelRequest, context: Any) -> pb.CancelResponse:
    """Cancel at the workers that have the rollout, or at all if none has it yet: its Init may reach any of them."""
    if request.WhichOneof("selection") == "rollout_id":
        found = await workers.find(workers.owner_of(context), request.rollout_id)
        holders = [worker for worker, value in found.items() if isinstance(value, int) and value > 0]
        if holders:
            answers = await results(workers.at(worker, name, request, context) for worker in holders)
            return _rows(dict(zip(holders, answers, strict=True)))
        answered = await workers.each(name, request, context)
        raise_first(answered)
        # A worker that did not answer find(), because it restarted, may have the rollout after all.
        known = {worker: answer for worker, answer in answered.items() if any(row.attempt for row in answer.results)}
        return _rows(known or dict([next(iter(answered.items()))]))
    return _rows(await workers.each(name, request, context))


async def server_info(workers: Workers, name: str, request: Any, context: Any) -> pb.GetServerInfoResponse:
    """Describe this worker, with the load of all workers and the capacity of those that accept rollouts.

    The process id is a hash over all workers, so it changes when any of them restarts or is lost. A callback trainer,
    which knows only this worker, then looks for its rollouts again.
    """
    here, *others = (await workers.each(name, request, context)).items()
    infos = workers.infos(dict(others))
    whole: pb.GetServerInfoResponse = here[1]
    for worker, _ in others:
        info = infos.get(worker)
        for field, value in info.capacity.ListFields() if info is not None else ():
            if worker < workers.siblings.config.accepting or not field.name.startswith("max_"):
                setattr(whole.capacity, field.name, getattr(whole.capacity, field.name) + value)
        whole.draining = whole.draining and (info is None or info.draining)
    known = infos | {here[0]: whole}
    processes = "/".join(known[worker].process_id for worker in sorted(known))
    whole.process_id = hashlib.blake2b(processes.encode(), digest_size=16).hexdigest()
    return whole


async def drain(workers: Workers, name: str, request: pb.DrainRequest, context: Any) -> pb.DrainResponse:
    """Begin or end a drain of all workers. Raises PermissionDenied unless the caller is an administrator."""
    workers.check_admin(context)
    answers = await workers.each(name, request, context)
    raise_first(answers)
    names = ("running", "queued", "undelivered")
    return pb.DrainResponse(**{name: sum(getattr(answer, name) for answer in answers.values()) for name in names})


async def page(workers: Workers, name: str, request: pb.ListRolloutsRequest, context: Any) -> Any:
    """List the rollouts of all workers in the order of their acceptance."""
    owner = workers.owner_of(context)
    return await merged_page(workers.all, lambda worker, part: workers.page(worker, owner, part), request)


async def events(
    workers: Workers, name: str, request: pb.StreamEventsRequest, context: Any
) -> AsyncGenerator[pb.StreamEventsResponse, None]:
    """Stream the events of one rollout from its worker, or those of all rollouts from all workers."""
    wire.check_stream(request)
    if request.rollout_id:
        worker = await workers.holder(workers.owner_of(context), request.rollout_id, request.attempt)
        found = workers.stream(worker, request, context)
    else:
        found = merged_events(
            workers.all, lambda worker, part: workers.stream(worker, part, context), request, workers.engine.supervisor
        )
    try:
        async for response in found:
            yield response
    finally:
        await found.aclose()


Rule = Callable[[Workers, str, Any, Any], Any]
RULES: dict[str, Rule] = {
    "Init": place,
    "Cancel": cancel,
    "GetRollout": at_its_worker,
    "ListRollouts": page,
    "StreamEvents": events,
    "Annotate": at_its_worker,
    "GetServerInfo": server_info,
    "Drain": drain,
}
"""The rule of each method. Attach has none, because an attachment stays with the worker that it reaches."""


class RoutedServicer:
    """The RolloutService of a worker. Each method follows its rule, so callers see the rollouts of all workers."""

    def __init__(self, workers: Workers) -> None:
        for name, rule in RULES.items():
            setattr(self, name, partial(rule, workers, name))
        self.Attach = workers.local.Attach


def hashed(key: str, count: int) -> int:
    """Return a number in range(count) that depends only on the key, in every process."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()) % count


def _highest(found: dict[int, Any]) -> int | None:
    """Return the worker with the highest attempt; None if no worker has one."""
    held = {worker: value for worker, value in found.items() if isinstance(value, int) and value > 0}
    return max(held, key=lambda worker: held[worker], default=None)


def _rows(answers: dict[int, Any]) -> pb.CancelResponse:
    """Return one response with the rows of all workers. Raises Unavailable if a worker did not answer."""
    raise_first(answers)
    return pb.CancelResponse(results=[row for answer in answers.values() for row in answer.results])
