"""Implements Trainer.groups(), which runs each request as a group of rollouts.

A group is yielded when its last member ends. Until then, GroupRun keeps its outcomes. At most one more group is open
than rollouts are in flight.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from osmosis_grpc.protocol.errors import InvalidArgument, RolloutFailed
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome, RolloutRequest
from osmosis_grpc.trainer.advantage import without_variance
from osmosis_grpc.trainer.run import Requests, Run, RunOptions, reason_of
from osmosis_grpc.trainer.submissions import Submissions

log = logging.getLogger(__name__)

OnFailure = Literal["drop_group", "drop_member", "raise"]
"""What to do with a group if a member fails and has no retries left."""
MIN_MEMBERS = 2
"""The smallest number of members that can be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeGroup:
    """The outcomes of one group. Iterates over the completed outcomes."""

    id: str
    """The id of the group's request."""
    size: int
    """The number of members that were started."""
    outcomes: tuple[RolloutOutcome, ...]
    """The members that completed, in order of their index."""
    failed: tuple[RolloutOutcome, ...] = ()
    """The last outcomes of the members that were dropped, in order of their index. Do not train on them."""

    def __iter__(self) -> Iterator[RolloutOutcome]:
        return iter(self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def complete(self) -> bool:
        """Whether no member was dropped."""
        return len(self.outcomes) == self.size

    @property
    def rewards(self) -> NDArray[np.float64]:
        """The rewards of the rollouts in `outcomes`: float64, shape (n,), NaN for an outcome without a reward.

        If the agent rewards each sample instead of the whole rollout, see `sample_rewards`.
        """
        return np.array([np.nan if outcome.reward is None else outcome.reward for outcome in self.outcomes])

    @property
    def sample_rewards(self) -> dict[str, NDArray[np.float64]]:
        """The rewards of the samples by name: float64, shape (n,), NaN for an outcome without the sample's reward.

        A sample without a reward of its own has the reward of its rollout; see RolloutOutcome.reward_of().
        """
        names = dict.fromkeys(name for outcome in self.outcomes for name in outcome.samples)
        rewards = {
            name: [outcome.reward_of(name) if name in outcome.samples else None for outcome in self.outcomes]
            for name in names
        }
        return {name: np.array(found, dtype=np.float64) for name, found in rewards.items()}

    @property
    def zero_variance(self) -> bool:
        """Whether all compared rewards are equal. Such a group has no learning signal. See advantages()."""
        if any(outcome.mean_reward is None for outcome in self.outcomes):
            return False
        return without_variance(self.outcomes)

    async def confirm(self) -> None:
        """Confirm all outcomes of the group. See RolloutOutcome.confirm(). Raises LedgerError."""
        await asyncio.gather(*(outcome.confirm() for outcome in (*self.outcomes, *self.failed)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """Counts of a trainer's groups since it was started."""

    yielded: int = 0
    dropped: int = 0
    """Groups that were not yielded, because too many members failed."""
    dropped_members: int = 0
    """Failed members of groups that were yielded."""
    retried: int = 0
    """Failed members that were started again."""
    stale: int = 0
    """Completed rollouts that were started again because of `max_version_lag`."""
    zero_variance: int = 0
    """Yielded groups whose rewards are all equal."""


class GroupRun(Run):
    """One call of Trainer.groups()."""

    yields_refused = False

    def __init__(self, submissions: Submissions, options: RunOptions, *, on_failure: OnFailure) -> None:
        super().__init__(submissions, options)
        self.name = "groups"
        self._counts = submissions.group_counts
        size = self._size = options.group_size
        if size < MIN_MEMBERS:
            raise ValueError(f"group_size: {size} is less than {MIN_MEMBERS}; use run() for single rollouts")
        if on_failure not in get_args(OnFailure):
            raise ValueError(f"on_failure: {on_failure!r} is not one of {', '.join(get_args(OnFailure))}")
        self.raises_at_once = self._raises = on_failure == "raise"
        self._may_fail = size - MIN_MEMBERS if on_failure == "drop_member" else 0
        self._hints = on_failure == "drop_group" and size > MIN_MEMBERS  # logged once, before the first yielded group
        self._open: dict[str, dict[int, RolloutOutcome]] = {}
        """The outcomes of unfinished groups, by index."""
        self._requests: dict[str, dict[int, RolloutRequest]] = {}
        """The requests of the outcomes in `_open`."""

    async def groups(self, requests: Requests) -> AsyncGenerator[OutcomeGroup, None]:
        """See Trainer.groups()."""
        yields, dropped, last = False, 0, None
        async with aclosing(self.ended(requests)) as ended:
            async for request, outcome in ended:
                assert request.group is not None
                name = request.group.id
                group = self._open.setdefault(name, {})
                if group.setdefault(request.group.index, outcome) is not outcome:
                    raise InvalidArgument("rollout_id", f"two requests of one groups() have the id {name}")
                self._requests.setdefault(name, {})[request.group.index] = request
                if len(_members(group, completed=False)) > self._may_fail:
                    if self._raises:
                        raise RolloutFailed(f"rollout {outcome.rollout_id}: {reason_of(outcome)}", outcome)
                    if self._failed.get(name) != len(group):  # if the policy fails all members, the last one raises
                        await self._drop(name, group, outcome)
                        if outcome.status is not OutcomeStatus.CANCELLED:
                            dropped, last = dropped + 1, outcome
                elif len(group) == self._size and not self._renew(name, group):
                    yields = True
                    yield self._finish(name, group)
        if last is not None and not yields:  # a loop that gets no group at all should not end without an error
            count = "the group was" if dropped == 1 else f"all {dropped} groups were"
            raise RolloutFailed(
                f"{count} dropped; the last failure was rollout {last.rollout_id}: {reason_of(last)}", last
            )

    def _renew(self, name: str, group: dict[int, RolloutOutcome]) -> bool:
        stale = [index for index, outcome in group.items() if self.is_stale(outcome)]
        for index in stale:
            self.renew(self._requests[name][index], group.pop(index))
        return bool(stale)

    def _finish(self, name: str, group: dict[int, RolloutOutcome]) -> OutcomeGroup:
        del self._open[name], self._requests[name]
        self._hints = False
        self._counts["yielded"] += 1
        completed, failed = _members(group, completed=True), _members(group, completed=False)
        self._counts["dropped_members"] += len(failed)
        for each in failed:
            log.warning("group %s goes without rollout %s: %s", name, each.rollout_id, reason_of(each))
        made = OutcomeGroup(id=name, size=self._size, outcomes=completed, failed=failed)
        self._counts["zero_variance"] += made.zero_variance
        return made

    async def _drop(self, name: str, group: dict[int, RolloutOutcome], last: RolloutOutcome) -> None:
        """Drop a group: cancel its running members, and confirm its outcomes, because no caller will get them."""
        untaken = self.abandon(name)
        del self._open[name], self._requests[name]
        self._failed.pop(name, None)
        self._counts["dropped"] += 1
        hint = f'; on_failure="drop_member" yields groups of which at least {MIN_MEMBERS} members complete'
        log.warning(
            "group %s is dropped: rollout %s, attempt %d: %s%s",
            name,
            last.rollout_id,
            last.attempt,
            reason_of(last),
            hint if self._hints else "",
        )
        self._hints = False
        await asyncio.gather(*(outcome.confirm() for outcome in (*group.values(), *untaken)))


def _members(group: dict[int, RolloutOutcome], *, completed: bool) -> tuple[RolloutOutcome, ...]:
    return tuple(
        group[index] for index in sorted(group) if (group[index].status is OutcomeStatus.COMPLETED) is completed
    )
