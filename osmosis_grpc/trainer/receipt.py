"""Confirms a completion in the ledger."""

from osmosis_grpc.errors import LedgerError
from osmosis_grpc.storage.ledger import Ledger, LedgerRollout
from osmosis_grpc.types import Completion


class LedgerReceipt:
    """Confirms one completion."""

    __slots__ = ("_ledger", "_name")

    def __init__(self, ledger: Ledger, completion: Completion | LedgerRollout) -> None:
        self._ledger = ledger
        self._name = completion.rollout_id, completion.attempt, completion.result_id or ""

    async def confirm(self) -> None:
        await self._ledger.confirm(*self._name)

    def __copy__(self) -> "LedgerReceipt":
        return self

    def __deepcopy__(self, memo: object) -> "LedgerReceipt":
        return self

    def __reduce__(self) -> tuple[type["DetachedReceipt"], tuple[()]]:
        return DetachedReceipt, ()


class DetachedReceipt:
    """A receipt that was sent to another process."""

    __slots__ = ()

    async def confirm(self) -> None:
        """Raises LedgerError."""
        raise LedgerError("a completion is confirmed in the trainer's process: the ledger is open there")
