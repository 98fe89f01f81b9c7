"""Batch.torch(): the arrays as tensors, in parts, and a loss that does not depend on the side of the padding."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from osmosis_grpc.protocol.types import Sample
from osmosis_grpc.trainer import MissingExtraError, pad
from tests.made_extras import made
from tests.trainer.test_pad import completed, segment

NAMES = ("ids", "attention_mask", "loss_mask", "logprobs", "rewards", "advantages", "versions")


def batch(**options):
    lengths = ((2, 3), (1, 1, 2, 1), (3, 4))
    outcomes = []
    for n, runs in enumerate(lengths):
        sample = Sample(trainable=True, segments=(segment(runs, seed=n),))
        outcomes.append(completed(f"r{n}", reward=float(n), samples={"main": sample}))
    return pad(outcomes, advantages=[-1.0, 0.0, 1.0], **options)


@pytest.mark.adapters
@pytest.mark.parametrize("side", ["right", "left"])
def test_tensors_are_the_arrays(side):
    pytest.importorskip("torch")
    arrays = batch(side=side)
    tensors = arrays.torch()
    assert len(tensors) == 3
    for name in NAMES:
        array, tensor = getattr(arrays, name), getattr(tensors, name)
        assert str(tensor.dtype) == f"torch.{array.dtype}"
        assert np.array_equal(tensor.numpy(), array)
    tensors.ids[0, 0] += 1
    assert tensors.ids[0, 0] != arrays.ids[0, 0], "a tensor has memory of its own"
    for row in range(3):
        positions = tensors.position_ids[row][tensors.attention_mask[row]]
        assert positions.tolist() == list(range(len(positions)))
        assert not tensors.position_ids[row][~tensors.attention_mask[row]].any()


@pytest.mark.adapters
def test_parts_have_all_rows_and_share_their_memory():
    torch = pytest.importorskip("torch")
    whole = batch().torch("cpu")
    parts = list(whole.split(2))
    assert [len(part) for part in parts] == [2, 1]
    for name in (*NAMES, "position_ids"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
    parts[1].rewards[0] = 9.0
    assert whole.rewards[2] == 9.0
    with pytest.raises(ValueError, match="rows"):
        next(whole.split(0))


@pytest.mark.adapters
def test_extras_and_missing_advantages():
    torch = pytest.importorskip("torch")
    one = segment((2, 3))
    tokens = made(["routed_experts"], one.ids)
    sample = Sample(trainable=True, segments=(replace(one, token_extras=tokens),))
    tensors = pad([completed(samples={"main": sample})], extras=["routed_experts"]).torch()
    assert tensors.advantages is None
    assert tensors.extras["routed_experts"].dtype == torch.uint8
    (part,) = tensors.split(4)
    assert part.extras["routed_experts"].shape == (1, 5, 1, 2)


def test_without_torch_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError) as caught:
        batch().torch()
    assert "[torch]" in str(caught.value)
