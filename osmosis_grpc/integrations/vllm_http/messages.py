"""Converts a generator's calls to the JSON of vLLM's `POST /inference/v1/generate`, and the results back."""

from collections.abc import Mapping, Sequence
from typing import Any

from osmosis_grpc.integrations._model_server import generated, neutral, top_k_of
from osmosis_grpc.policies.generation import FinishReason, Generated, GenerateRequest, WeightNames
from osmosis_grpc.policies.model_http import typed
from osmosis_grpc.policies.sampling import Sampling
from osmosis_grpc.protocol.errors import Internal, InvalidArgument

PATH = "/inference/v1/generate"
_NEUTRAL = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORTED}
_CONSTRAINTS = {"json_schema": "json", "regex": "regex", "grammar": "grammar"}


def to_body(request: GenerateRequest, model: str) -> dict[str, Any]:
    """Return the body of a call. Raises InvalidArgument for media."""
    if request.media:
        problem = f"have {len(request.media)} images or other media; VllmGrpcGenerator takes them"
        raise InvalidArgument("messages", problem)
    return {
        "request_id": request.request_id,
        "token_ids": request.prompt_ids.tolist(),
        "sampling_params": _sampling(request.sampling),
        **({"priority": request.priority} if request.priority else {}),
        **({"model": model} if model else {}),
    }


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """Return vLLM's SamplingParams. Numbers are always set, and any other parameter only if it has an effect."""
    optional = {
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "ignore_eos": sampling.ignore_eos or None,
        "min_tokens": sampling.min_tokens or None,
        "bad_words": list(sampling.bad_words) or None,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()} or None,
        "allowed_token_ids": list(sampling.allowed_token_ids) or None,
        "structured_outputs": _constraint(sampling),
    }
    return {
        **neutral(sampling, *_NEUTRAL),
        "top_k": top_k_of(sampling, 0),
        "max_tokens": sampling.max_tokens,
        "logprobs": sampling.top_logprobs,  # 0 means only the sampled token's
        "detokenize": bool(sampling.stop),  # needed only to find stop texts
        **{name: value for name, value in optional.items() if value is not None},
    }


def _constraint(sampling: Sampling) -> dict[str, str] | None:
    return next(({name: value} for own, name in _CONSTRAINTS.items() if (value := getattr(sampling, own))), None)


def from_body(request: GenerateRequest, body: Mapping[str, Any], weights: WeightNames) -> Generated:
    """Return the result of a call.

    Raises Internal if the body contradicts the request or itself, Unavailable if the weights have lost their name, and
    KeyError, TypeError or ValueError for a malformed body.
    """
    (choice,) = body["choices"]
    ids: Sequence[int] = typed(choice["token_ids"], list)
    places = typed((choice.get("logprobs") or {}).get("content") or [], list)
    if places and [place["token_id"] for place in places] != ids:
        raise Internal("the engine's reply has logprobs of tokens that it does not have")
    usage = body.get("usage") or {}  # the Rust frontend sends none
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return generated(
        request,
        _REASONS.get(choice["finish_reason"]),
        choice["finish_reason"],
        ids=ids,
        sampled=usage.get("completion_tokens", len(ids)),
        prompt_tokens=usage.get("prompt_tokens", 0),
        logprobs=[place["logprob"] for place in places],
        candidates=[[(each["token_id"], each["logprob"]) for each in place["top_logprobs"]] for place in places],
        cached_tokens=cached,
        versions=weights.spans(_named(choice.get("weight_versions") or [], len(ids))),
    )


def _named(spans: Sequence[Mapping[str, Any]], count: int) -> list[tuple[str, int]]:
    """Return each weight version with its number of tokens. Raises Internal if the versions do not cover all tokens."""
    ends = [0, *(span["end"] for span in spans)]
    if spans and ([span["start"] for span in spans] != ends[:-1] or ends[-1] != count):
        raise Internal(f"the engine's versions do not cover exactly its {count} tokens")
    return [(typed(span["version"], str), span["end"] - span["start"]) for span in spans]
