"""The outcome of a rollout whose record in the journal or the ledger is damaged."""

import hashlib
from typing import Literal

from osmosis_grpc.protocol.types import Failure, FailureReason, OutcomeStatus, RolloutOutcome
from osmosis_grpc.protocol.types.failure_reasons import DATA_LOSS


def data_loss(
    file: Literal["journal", "ledger"], rollout_id: str, attempt: int, damage: str, *, result_id: str | None = None
) -> RolloutOutcome:
    """Return a FAILED outcome with the reason DATA_LOSS.

    If `result_id` is None, the result id depends only on the rollout id and the attempt.
    """
    name = f"{rollout_id}/{attempt}".encode("utf-8", "replace")
    message = f"the {file}'s record of the rollout is damaged: {damage}"
    return RolloutOutcome(
        rollout_id=rollout_id,
        attempt=attempt,
        status=OutcomeStatus.FAILED,
        result_id=hashlib.blake2b(name, digest_size=16).hexdigest() if result_id is None else result_id,
        finish_reason=DATA_LOSS,
        failure=Failure("server" if file == "journal" else "trainer", message, True, reason=FailureReason.DATA_LOSS),
    )
