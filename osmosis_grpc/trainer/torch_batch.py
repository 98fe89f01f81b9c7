"""Converts a batch to torch tensors: Batch.torch(). torch is imported on the first call."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from osmosis_grpc.protocol.errors import MissingExtraError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchBatch:
    """The arrays of a Batch as tensors on one device. n is the number of rows, and w the length of the longest row."""

    ids: "torch.Tensor"
    """int64, shape (n, w), as in Batch."""
    attention_mask: "torch.Tensor"
    """bool, shape (n, w), as in Batch."""
    position_ids: "torch.Tensor"
    """int64, shape (n, w): the position of each token in its row, from 0; 0 for padding. A model needs it if the
    padding is on the left."""
    loss_mask: "torch.Tensor"
    """bool, shape (n, w), as in Batch."""
    logprobs: "torch.Tensor"
    """float32, shape (n, w), as in Batch."""
    rewards: "torch.Tensor"
    """float32, shape (n,), as in Batch."""
    advantages: "torch.Tensor | None"
    """float32, shape (n,), as in Batch."""
    versions: "torch.Tensor"
    """int32, shape (n, w), as in Batch."""
    extras: "Mapping[str, torch.Tensor]"
    """Shape (n, w, ...) by name, as in Batch."""

    def __len__(self) -> int:
        return len(self.ids)

    def split(self, rows: int) -> "Iterator[TorchBatch]":
        """Yield parts with at most `rows` rows, for example to accumulate gradients over small batches.

        The parts are views: they share memory with this batch.
        """
        if rows < 1:
            raise ValueError(f"rows: {rows} is less than 1")
        for first in range(0, len(self), rows):
            part = slice(first, first + rows)
            changes = {
                field.name: value[part]
                for field in fields(self)
                if (value := getattr(self, field.name)) is not None and field.name != "extras"
            }
            yield replace(self, **changes, extras={name: each[part] for name, each in self.extras.items()})


def torch_batch(batch: Any, device: Any) -> TorchBatch:
    """See Batch.torch(). `batch` is a Batch, whose module imports this one."""
    try:
        import torch
    except ImportError as error:
        if error.name != "torch":  # torch is installed, but broken
            raise
        raise MissingExtraError("Batch.torch()", "torch") from None

    def tensor(array: Any) -> "torch.Tensor":
        return torch.tensor(array, device=device)  # a copy, so that neither changes the other

    positions = np.maximum(batch.attention_mask.cumsum(axis=1) - 1, 0)
    return TorchBatch(
        ids=tensor(batch.ids),
        attention_mask=tensor(batch.attention_mask),
        position_ids=tensor(np.where(batch.attention_mask, positions, 0)),
        loss_mask=tensor(batch.loss_mask),
        logprobs=tensor(batch.logprobs),
        rewards=tensor(batch.rewards),
        advantages=None if batch.advantages is None else tensor(batch.advantages),
        versions=tensor(batch.versions),
        extras={name: tensor(array) for name, array in batch.extras.items()},
    )
