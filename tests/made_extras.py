"""Extras that are made of a token and its position, so that those of any segment are known."""

import numpy as np

from osmosis_grpc.protocol.types import RaggedTensor, Segment, Tensor


def experts(tokens, first=0) -> Tensor:
    rows = [[[(token + at) % 251, at % 7]] for at, token in enumerate(tokens, first)]
    return Tensor.of(np.array(rows, dtype="uint8").reshape(len(tokens), 1, 2))


def allowed(tokens, first=0) -> RaggedTensor:
    return RaggedTensor.of([[int(token)] * (at % 3) for at, token in enumerate(tokens, first)], "uint32")


def entropy(tokens, first=0) -> Tensor:
    return Tensor.of(np.array([at / 8 for at, _ in enumerate(tokens, first)], dtype="float32"))


MAKERS = {"routed_experts": experts, "sampling_mask": allowed, "entropy": entropy}


def made(names, tokens, first=0):
    return {name: MAKERS[name](tokens, first) for name in names}


def right(segment: Segment) -> bool:
    """Returns True if every extra of a segment is the one of its token and position. Fails otherwise."""
    mask = segment.mask()
    for name, extra in segment.token_extras.items():
        assert extra == MAKERS[name](segment.ids)
    for name, extra in segment.sampled_extras.items():
        whole = MAKERS[name](segment.ids)
        if isinstance(extra, RaggedTensor):
            wanted = [row.tolist() for row, sampled in zip(whole.numpy(), mask, strict=True) if sampled]
            assert [row.tolist() for row in extra.numpy()] == wanted
        else:
            assert np.array_equal(extra.numpy(), whole.numpy()[mask])
    return True
