"""Trainer: runs rollouts on any number of agent servers, over attached streams or by callbacks."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from itertools import chain
from typing import Unpack

from osmosis_grpc.protocol.errors import InvalidArgument, Unavailable
from osmosis_grpc.protocol.types import Annotation, CancelResult, RolloutOutcome, RolloutRequest, TrajectoryEvent
from osmosis_grpc.trainer.annotate import AnnotationFields, annotate, events
from osmosis_grpc.trainer.evaluation import Evaluation
from osmosis_grpc.trainer.groups import GroupRun, OnFailure, OutcomeGroup
from osmosis_grpc.trainer.request_check import RolloutFields, check_selection, checked
from osmosis_grpc.trainer.run import Requests, Run, RunOptions, left_over
from osmosis_grpc.trainer.trainer_lifecycle import TrainerLifecycle


class Trainer(TrainerLifecycle):
    """Runs rollouts on agent servers and answers their chats with a policy. Use it with `async with`.

    Args:
        servers: The agent servers. Each entry is HOST:PORT; "dns:///NAME:PORT", where each address of the name is a
            server; a Path, "./FILE" or "file:///PATH" with a HOST:PORT on each line and comments after #; or an async
            function that returns a list of HOST:PORT, such as osmosis_grpc.integrations.ray.ray_targets(). Names, files
            and functions are read again regularly, and a server that is no longer in the list gets no new rollouts.
        policy: Answers the chats. If agents use several policies, pass a mapping from names to policies; the policy
            with the name "" answers the chats without a name. A chat with another name is refused.
        transport: "attach": one stream to each server carries all messages. With `listen`, agent servers can also open
            the stream (`serve --connect`). "callback": the trainer calls the servers, and they call it at `listen`.
        listen: HOST:PORT to listen on. Port 0 means a free port; see `address` for its number. The default for
            callbacks is 127.0.0.1:0.
        ledger: A file that stores the sent rollouts, the answers to chats, and each outcome until it is confirmed with
            `await outcome.confirm()`. A trainer that is restarted with the same ledger continues the rollouts of the
            earlier process; see unconfirmed(). Without a ledger, a killed trainer forgets its rollouts.
        credentials: The token and the TLS files for calls to `servers`.
        security: The tokens that callers of `listen` need, and the TLS files. With callbacks, the trainer makes a
            credential for each rollout.
        config: Limits and timeouts.
        system: Clocks, random numbers, ids and threads. Tests replace it.

    Raises:
        OSError: The port is taken.
        LedgerError: The ledger cannot be opened.
        ValueError: A server, a transport, an address or a mapping of policies cannot be used.
        TypeError: A policy is not callable.
    """

    async def rollout(
        self, /, request: RolloutRequest | None = None, *, affinity_key: str = "", **changes: Unpack[RolloutFields]
    ) -> RolloutOutcome:
        """Run a rollout and wait for its outcome.

        If a rollout with the same id is unfinished, wait for that one. If the ledger has an unconfirmed outcome of the
        rollout, return that outcome. If you cancel the last waiting call, the rollout is cancelled. If no caller got
        the outcome of an attempt that a server may have run, the request runs as the next attempt.

        Args:
            request: The request. You can also pass its fields by name.
            affinity_key: Rollouts with the same key go to the same server.
            **changes: Fields of RolloutRequest.

        Raises:
            InvalidArgument: A field is wrong; the error names it.
            AlreadyExists: Another request uses the same id.
            Superseded: A higher attempt replaces this one.
            Unavailable: There is no agent server.
            CallError: The server refuses the rollout.
            Exception: The exception of the policy, if it made the rollout fail.
        """
        rollout = self._open.submit(checked(request, changes), affinity_key=affinity_key)
        rollout.waiters += 1
        try:
            outcome = await asyncio.shield(rollout.done)
        finally:
            rollout.waiters -= 1
            if not rollout.waiters:
                self._open.abandon(rollout)
        failure = rollout.failed_by(outcome)
        if failure is not None:
            failure.reraise()
        self._open.position.take([outcome])
        return outcome

    async def run(
        self,
        requests: Requests,
        *,
        group_size: int = 1,
        retries: int = 0,
        max_in_flight: int = 256,
        max_version_lag: int | None = None,
        colocate_groups: bool = False,
        progress: bool = False,
    ) -> AsyncGenerator[RolloutOutcome, None]:
        """Run rollouts, and yield each outcome when its rollout ends. Leaving the loop cancels unfinished rollouts.

        A refused or superseded rollout is yielded as FAILED, with the reason.

        Args:
            requests: An iterable or async iterable of requests. Each is read when its rollout may start.
            group_size: How many times each request runs. If above 1, the id of the request becomes the id of a group
                with the members ID-0, ID-1, and so on.
            retries: How many times a failed rollout runs again with a higher attempt, as in groups().
            max_in_flight: How many rollouts may run at a time.
            max_version_lag: How many versions the oldest token of a yielded outcome may be behind the version of
                resume(). An older rollout runs again with a higher attempt. The versions must be numbers.
            colocate_groups: Whether all members of a group run on one server.
            progress: Whether to show the progress on stderr, as a bar on a terminal with rich (the extra `server`), or
                else as lines.

        Raises:
            InvalidArgument: A request is wrong, two have the same id, or, with `max_version_lag`, a token has no
                version.
            TypeError: A request is not a RolloutRequest.
            Exception: The exception of the policy, if it made a whole group fail, or without groups a rollout. A
                CallError of the policy, such as Unavailable, is an answer to the agent, and is not raised.
        """
        options = RunOptions(
            group_size=group_size,
            max_in_flight=max_in_flight,
            max_version_lag=max_version_lag,
            colocate_groups=colocate_groups,
            retries=retries,
            progress=progress,
        )
        async with aclosing(Run(self._open, options).ended(requests)) as ended:
            async for _, outcome in ended:
                self._open.position.take([outcome])
                yield outcome

    async def groups(
        self,
        requests: Requests,
        group_size: int,
        *,
        retries: int = 1,
        on_failure: OnFailure = "drop_group",
        max_in_flight: int = 256,
        max_version_lag: int | None = None,
        colocate_groups: bool = False,
        progress: bool = False,
    ) -> AsyncGenerator[OutcomeGroup, None]:
        """Run each request as a group, as run() does, and yield each group when its last member ends.

        Args:
            requests: As in run().
            group_size: The number of members of a group.
            retries: How many times a member that does not complete runs again with a higher attempt, unless it was
                cancelled, or refused with a permanent error.
            on_failure: What to do if a member still fails. "drop_group" cancels the other members and yields nothing.
                "drop_member" yields the group without the member if at least two members complete. "raise" raises
                RolloutFailed, or at once the first exception of the policy. Dropped members and groups are logged, and
                counted in `group_counts`.
            max_in_flight: As in run().
            max_version_lag: As in run(). Stale members run again before their group is yielded.
            colocate_groups: As in run().
            progress: As in run().

        Raises:
            AlreadyExists: This trainer has already run the id (Aborted for a lower attempt).
            RolloutFailed: A member failed (with "raise"), or every group was dropped. The error has the last outcome.
            LedgerError: The outcomes of a dropped group cannot be confirmed.
            Exception: The exception of the policy, or the error of a server, if it made all members of a group fail.
        """
        options = RunOptions(
            group_size=group_size,
            max_in_flight=max_in_flight,
            max_version_lag=max_version_lag,
            colocate_groups=colocate_groups,
            retries=retries,
            progress=progress,
        )
        run = GroupRun(self._open, options, on_failure=on_failure)
        async with aclosing(run.groups(requests)) as groups:
            async for group in groups:
                self._open.position.take((*group.outcomes, *group.failed))
                yield group

    async def evaluate(
        self, requests: Requests, *, group_size: int = 1, max_in_flight: int = 64, colocate_groups: bool = False
    ) -> Evaluation:
        """Run rollouts that measure the policy, and return their outcomes. Other rollouts may run at the same time.

        The requests are sent with `evaluation=True`: the trainer, the servers and their files mark the outcomes as
        evaluations, and trainable_samples() and pad() leave them out. Requests with a higher `priority` go first in a
        server's queue. Each id runs only once, so a later evaluation of the same rows needs new ids.

        Args:
            requests: As in run().
            group_size: How many times each request runs. The result has pass@k for each k up to this number.
            max_in_flight: As in run().
            colocate_groups: As in run().

        Raises:
            InvalidArgument: There are no requests.
            Exception: The errors of run().
        """
        options = RunOptions(
            group_size=group_size, max_in_flight=max_in_flight, colocate_groups=colocate_groups, evaluation=True
        )
        async with aclosing(Run(self._open, options).ended(requests)) as ended:
            outcomes = tuple([outcome async for _, outcome in ended])
        if not outcomes:
            raise InvalidArgument("requests", "is empty, so there is nothing to measure")
        self._open.position.take(outcomes)
        return Evaluation(outcomes=outcomes)

    async def unconfirmed(self) -> AsyncGenerator[RolloutOutcome, None]:
        """Yield the unconfirmed outcomes of an earlier process, and of the rollouts that it did not finish.

        The unconfirmed outcomes in the ledger come first, the oldest at the start. Then the outcome of each unfinished
        rollout follows when the rollout ends. Rollouts for which rollout() or run() waits are left out, and so are
        outcomes for which a higher attempt was requested. Leaving the loop cancels nothing. Without a ledger, nothing
        is yielded.
        """
        async with aclosing(left_over(self._open)) as outcomes:
            async for outcome in outcomes:
                self._open.position.take([outcome])
                yield outcome

    async def cancel(
        self, rollout_id: str = "", *, group_id: str = "", prefix: str = "", everything: bool = False, reason: str = ""
    ) -> list[CancelResult]:
        """Cancel rollouts of this trainer. Idempotent.

        Each rollout ends with the status CANCELLED, and its callers get this outcome.

        Args:
            rollout_id: Cancel this rollout.
            group_id: Cancel the rollouts of this group.
            prefix: Cancel the rollouts whose ids begin with this text.
            everything: Cancel all rollouts.
            reason: The reason, for the outcome.

        Raises:
            InvalidArgument: Not exactly one of `rollout_id`, `group_id`, `prefix` and `everything` is set.
            Unavailable: A server cannot write the cancel to its disk. Its running process still cancels the rollouts,
                and you can repeat the call.
        """
        check_selection(rollout_id, group_id, prefix, everything=everything)
        cancels = []
        for rollout in list(self.scheduler.rollouts.values()):
            name, group = rollout.request.rollout_id, rollout.request.group
            in_group = bool(group_id) and group is not None and group.id == group_id
            if not (everything or in_group or name == rollout_id or (prefix and name.startswith(prefix))):
                continue
            rollout.cancelled = True
            if rollout.server is None:
                self.scheduler.end_here(rollout)
            else:  # by id, because the group may include rollouts of another trainer
                cancels.append(rollout.server.cancel(name, reason))
        return list(chain.from_iterable(await asyncio.gather(*cancels)))

    async def events(
        self, rollout_id: str, *, attempt: int = 0, after: int = 0, tokens: bool = False
    ) -> AsyncGenerator[TrajectoryEvent, None]:
        """Yield a rollout's events so far, and then its new events until the last one.

        Wait until a server has accepted the rollout, and continue after a broken connection.

        Args:
            rollout_id: The rollout.
            attempt: The attempt; 0 means the newest.
            after: Yield only events with higher numbers.
            tokens: Whether replies include their tokens.

        Raises:
            NotFound: No server knows the rollout.
            CallError: A server refuses the call.
        """
        await asyncio.sleep(0)  # let a task that the caller has just started submit the rollout first
        if self._open.failure is not None:
            raise self._open.failure
        rollout = self.scheduler.rollouts.get(rollout_id)
        if rollout is not None:
            await rollout.wait_until_opened()
        first = rollout.server if rollout is not None else None
        recent, attached = self.scheduler.placement.recent_servers, self.scheduler.servers.attached
        servers = [first] if first is not None else recent.first(rollout_id, attached)
        async with aclosing(events(servers, rollout_id, attempt, after, tokens=tokens)) as stream:
            async for event in stream:
                yield event

    async def annotate(
        self, outcome: RolloutOutcome, annotation: Annotation | None = None, **fields: Unpack[AnnotationFields]
    ) -> tuple[int, bool]:
        """Store an annotation with a rollout that has ended.

            await trainer.annotate(outcome, id=f"step-{step}", trained=True, advantage=0.7, weight_step=str(step))

        The server stores it as an event of the rollout. Storing an equal annotation with the same id again adds
        nothing. If the connection breaks, the call continues on the next connection.

        Args:
            outcome: The outcome of the rollout.
            annotation: The annotation. You can also pass its fields by name.
            **fields: Fields of Annotation.

        Returns:
            The number of the event, and whether this call has added it.

        Raises:
            InvalidArgument: The annotation does not fit the outcome.
            AlreadyExists: Another annotation has the same id.
            Unavailable: The server of the rollout is not attached now, or cannot write to its disk.
            NotFound: No server has the rollout.
            Unimplemented: The server does not store annotations.
        """
        if annotation is not None and not isinstance(annotation, Annotation):
            raise TypeError(f"an Annotation or its fields by name is needed, not a {type(annotation).__name__}")
        if self._open.failure is not None:
            raise self._open.failure
        full = replace(annotation, **fields) if annotation is not None else Annotation(**fields)
        reported = self.scheduler.placement.recent_servers.get(outcome.rollout_id)
        if reported is not None and not reported.attached:
            raise Unavailable(f"agent server {reported.name} has the rollout and is not attached now", retry_after=1.0)
        servers = self.scheduler.placement.recent_servers.first(outcome.rollout_id, self.scheduler.servers)
        return await annotate(servers, outcome.rollout_id, outcome.attempt, full)
