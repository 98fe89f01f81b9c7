"""What the gRPC services of vLLM and SGLang have in common: neutral sampling, and the check of a result."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from osmosis_grpc.policies.generation import FinishReason, Generated, GenerateRequest
from osmosis_grpc.policies.sampling import Sampling
from osmosis_grpc.protocol.errors import Internal
from osmosis_grpc.protocol.types import Extras, Ids, Tensor
from osmosis_grpc.protocol.types.tokens import Logprobs


def neutral(sampling: Sampling, *names: str) -> dict[str, Any]:
    """Return these parameters, with neutral values for those that the chat does not set.

    The services take an absent number as 0 or as the model's default. Both would change the distribution of the tokens
    without a word.
    """
    ones = ("temperature", "top_p", "repetition_penalty")
    values = {name: getattr(sampling, name) for name in names}
    return {name: float(name in ones) if value is None else value for name, value in values.items()}


def top_k_of(sampling: Sampling, every: int) -> int:
    """Return the `top_k`; `every` for one that leaves out no token."""
    return sampling.top_k if sampling.top_k is not None and sampling.top_k > 0 else every


def generated(
    request: GenerateRequest,
    finish_reason: FinishReason | None,
    said: Any,
    *,
    ids: Sequence[int],
    sampled: int,
    prompt_tokens: int,
    logprobs: Sequence[float],
    candidates: Sequence[Sequence[tuple[int, float]]],
    **fields: Any,
) -> Generated:
    """Return the result of a call. Raises Internal for a reply that contradicts the request or itself.

    Args:
        request: The call.
        finish_reason: Why the sampling ended; None if `said`, what the engine said, is unknown.
        said: The finish reason of the engine.
        ids: The sampled tokens.
        sampled: How many tokens the engine counts.
        prompt_tokens: The length of the prompt that it sampled from; 0 if it does not say.
        logprobs: The logprobs of `ids`; empty if it returned none.
        candidates: The ids and logprobs of the most likely tokens at each place.
        fields: Further fields of the result.
    """
    if finish_reason is None:
        raise Internal(f"the engine's reply has the finish reason {said!r:.80}, which is unknown")
    if prompt_tokens not in (0, len(request.prompt_ids)) and not request.media:
        raise Internal(f"the engine sampled from {prompt_tokens} tokens, and got {len(request.prompt_ids)}")
    if len(ids) < sampled:
        raise Internal(f"the engine's reply has {len(ids)} token ids for {sampled} tokens")
    if len(logprobs) not in (0, len(ids)):
        raise Internal(f"the engine's reply has {len(logprobs)} logprobs for {len(ids)} tokens")
    tokens = np.array(ids, dtype="<u4")
    values = np.array(logprobs, dtype="<f4") if len(logprobs) == len(ids) else None
    return Generated(
        token_ids=tokens,
        logprobs=values,
        finish_reason=finish_reason,
        extras=_top_logprobs(tokens, values, candidates, request.sampling.top_logprobs),
        **fields,
    )


def _top_logprobs(
    ids: Ids, logprobs: Logprobs | None, candidates: Sequence[Sequence[tuple[int, float]]], count: int
) -> Extras:
    """Return the `count` most likely tokens at each place and their logprobs, most likely first; both (n, count).

    The candidates may lack the sampled token. Returns nothing if the server returned too few.
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
