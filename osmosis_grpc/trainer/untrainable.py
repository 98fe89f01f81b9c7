"""Logs a warning for the first rollout that completes without a trainable sample, and the total at the end."""

import logging

from osmosis_grpc.types import Completion, CompletionStatus
from osmosis_grpc.types.completion import clip, printable

log = logging.getLogger(__name__)

MAX_REASON = 512
"""Bytes of a reason in a warning."""


class UntrainableOutcomes:
    """Counts the completed rollouts of one trainer, and the untrainable ones among them."""

    def __init__(self) -> None:
        self._completed = self._untrainable = self._reported = 0
        self._reason = ""
        """The reason of the first one."""

    def count(self, completion: Completion) -> None:
        """Count an outcome. Evaluations and rollouts that did not complete are left out."""
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
        """Log the total if it has grown since the last warning."""
        if self._untrainable > self._reported:
            self._reported = self._untrainable
            log.warning(
                "%d of %d completed rollouts are not trainable; the first one: %s",
                self._untrainable,
                self._completed,
                self._reason,
            )
