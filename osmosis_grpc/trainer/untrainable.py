"""Warns of rollouts that complete and leave nothing to train on: at the first, and with the total in the end."""

import logging

from osmosis_grpc.types import Completion, CompletionStatus
from osmosis_grpc.types.completion import clip, printable

log = logging.getLogger(__name__)

MAX_REASON = 512
"""Bytes of a reason in a warning."""


class UntrainableOutcomes:
    """Counts the completed rollouts of one trainer, and those that are not trainable among them."""

    def __init__(self) -> None:
        self._completed = self._untrainable = self._reported = 0
        self._reason = ""
        """That of the first one."""

    def count(self, completion: Completion) -> None:
        """Count an outcome. An evaluation and a rollout that did not complete do not count."""
        if completion.evaluation or completion.status is not CompletionStatus.COMPLETED:
            return
        self._completed += 1
        reason = completion.not_trainable_reason
        if not reason:
            return
        self._untrainable += 1
        if self._untrainable == 1:
            self._reported, self._reason = 1, printable(clip(reason, MAX_REASON))
            log.warning("rollout %s completed but is not trainable: %s", completion.rollout_id, self._reason)

    def report(self) -> None:
        """Log the total, where it is more than was logged."""
        if self._untrainable > self._reported:
            self._reported = self._untrainable
            log.warning(
                "%d of %d completed rollouts are not trainable; the first one: %s",
                self._untrainable,
                self._completed,
                self._reason,
            )
