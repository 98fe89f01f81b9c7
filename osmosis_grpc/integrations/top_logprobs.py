"""Makes the extras top_logprobs and top_logprob_ids from the candidates that a model server returns."""

from collections.abc import Sequence

import numpy as np

from osmosis_grpc.protocol.types import Extras, Ids, Tensor
from osmosis_grpc.protocol.types.tokens import Logprobs


def top_logprob_extras(
    ids: Ids, logprobs: Logprobs | None, candidates: Sequence[Sequence[tuple[int, float]]], count: int
) -> Extras:
    """Return the `count` most likely tokens at each place and their logprobs, most likely first; both (n, count).

    `candidates` has the (id, logprob) of the most likely tokens at each place, with the sampled token or without it.
    Returns nothing if the server returned fewer.
    """
    if not count or logprobs is None or len(candidates) != len(ids):
        return {}
    rows = []
    for token, logprob, listed in zip(ids.tolist(), logprobs.tolist(), candidates, strict=True):
        row = sorted({token: logprob, **dict(listed)}.items(), key=lambda pair: -pair[1])[:count]
        if len(row) < count:
            return {}
        rows.append(row)
    shape = (len(rows), count)
    values = np.array([[value for _, value in row] for row in rows], dtype="<f4").reshape(shape)
    names = np.array([[name for name, _ in row] for row in rows], dtype="<u4").reshape(shape)
    return {"top_logprobs": Tensor.of(values), "top_logprob_ids": Tensor.of(names)}
