"""Converts a generator's calls to messages of smg-grpc-proto, and the replies back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from smg_grpc_proto import sglang_scheduler_pb2 as sglang
from smg_grpc_proto import sglang_scheduler_pb2_grpc as sglang_grpc
from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto import vllm_engine_pb2_grpc as vllm_grpc
from smg_grpc_proto.generated import common_pb2 as common

from osmosis_grpc.integrations._model_server import generated, neutral, top_k_of
from osmosis_grpc.policies.generation import FinishReason, Generated, GenerateRequest
from osmosis_grpc.policies.sampling import Sampling, refuse
from osmosis_grpc.protocol.errors import CallError, Internal, InvalidArgument, Unavailable

MAX_LOGPROBS = 20
"""vLLM's default limit, which --max-logprobs raises."""
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORTED}
_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_SAME = ("stop", "stop_token_ids", "ignore_eos")

tokenizer_request = common.GetTokenizerRequest
"""Creates the request of GetTokenizer, which is the same for both engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The service of one engine."""

    stub: Callable[[Any], Any]
    """Creates the client of the service from a channel."""
    model_info_request: Callable[[], Any]
    abort_request: Callable[[str], Any]
    to_message: Callable[[GenerateRequest], Any]
    """Creates the request of Generate. Raises InvalidArgument for a parameter that it cannot express."""
    refusal: Callable[[GenerateRequest, Internal], CallError]
    """Returns the error for a call that the engine refuses."""
    names_weights: bool
    """Whether the reply of GetModelInfo contains the version of the weights."""


def _to_vllm(request: GenerateRequest) -> Any:
    """Convert a call for vLLM, where 0 turns off top_k and min_p, and absent logprobs mean none."""
    sampling = request.sampling
    refuse(sampling, ("bad_words", "allowed_token_ids"), "this service")
    if sampling.seed is not None and not -(2**31) <= sampling.seed < 2**31:
        raise InvalidArgument("params.seed", f"is {sampling.seed}; this service takes 32 bits")
    return vllm.GenerateRequest(
        request_id=request.request_id,
        tokenized=vllm.TokenizedInput(input_ids=request.prompt_ids.tolist()),
        sampling_params=vllm.SamplingParams(
            **_shared(sampling, grammar="grammar"),
            top_k=top_k_of(sampling, 0),
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            logit_bias=sampling.logit_bias,
            logprobs=_counted(sampling),
            seed=sampling.seed,
        ),
    )


def _refused_by_vllm(request: GenerateRequest, error: Internal) -> CallError:
    count = _counted(request.sampling)
    if count <= MAX_LOGPROBS or "logprobs" not in str(error):
        return error
    most = f"ask for at most {MAX_LOGPROBS - 1}, or start vLLM with --max-logprobs {count}"
    return InvalidArgument("params.top_logprobs", f"the sampled token counts as one of them: {most}; {error}")


def _to_sglang(request: GenerateRequest) -> Any:
    """Convert a call for SGLang, where absent numbers mean 0 and not the engine's defaults."""
    sampling = request.sampling
    refuse(sampling, ("bad_words", "allowed_token_ids"), "this service")
    if sampling.seed is not None:
        raise InvalidArgument("params.seed", "SGLang's gRPC service takes no seed")
    return sglang.GenerateRequest(
        request_id=request.request_id,
        tokenized=sglang.TokenizedInput(input_ids=request.prompt_ids.tolist()),
        sampling_params=sglang.SamplingParams(
            **_shared(sampling, grammar="ebnf_grammar"),
            top_k=top_k_of(sampling, -1),
            max_new_tokens=sampling.max_tokens,
            min_new_tokens=sampling.min_tokens,
            logit_bias={str(token): bias for token, bias in sampling.logit_bias.items()},
            no_stop_trim=True,  # keep the token that ends the turn
        ),
        return_logprob=True,
        logprob_start_len=-1,  # 0 would also compute the logprobs of the prompt
        top_logprobs_num=sampling.top_logprobs,
    )


ENGINES: Mapping[str, Engine] = {
    "vllm": Engine(
        stub=vllm_grpc.VllmEngineStub,
        model_info_request=vllm.GetModelInfoRequest,
        abort_request=lambda request_id: vllm.AbortRequest(request_ids=[request_id]),
        to_message=_to_vllm,
        refusal=_refused_by_vllm,
        names_weights=False,
    ),
    "sglang": Engine(
        stub=sglang_grpc.SglangSchedulerStub,
        model_info_request=sglang.GetModelInfoRequest,
        abort_request=lambda request_id: sglang.AbortRequest(request_id=request_id, reason="no longer wanted"),
        to_message=_to_sglang,
        refusal=lambda request, error: error,
        names_weights=True,
    ),
}
"""The engines by name."""


def from_message(request: GenerateRequest, reply: Any, version: str) -> Generated:
    """Return the result of a call. Raises Internal for a reply that contradicts the request or itself."""
    if reply.finish_reason == "error":
        raise Unavailable("the engine failed while it sampled")
    given = reply.output_logprobs
    if given.token_logprobs and list(given.token_ids) != list(reply.output_ids):
        raise Internal("the engine's reply has logprobs of other tokens than its own")
    return generated(
        request,
        _REASONS.get(reply.finish_reason),
        reply.finish_reason,
        ids=reply.output_ids,
        sampled=reply.completion_tokens,
        prompt_tokens=reply.prompt_tokens,
        logprobs=given.token_logprobs,
        candidates=[list(zip(place.token_ids, place.values, strict=True)) for place in given.top_logprobs],
        weight_version=version,
        cached_tokens=reply.cached_tokens,
    )


def _counted(sampling: Sampling) -> int:
    """Return how many logprobs to request from vLLM for each token, including that of the sampled one."""
    return sampling.top_logprobs + 1 if sampling.top_logprobs else 0


def _shared(sampling: Sampling, *, grammar: str) -> dict[str, Any]:
    """Return the parameters with the same meaning in both services, and the first constraint that is set."""
    names = {"json_schema": "json_schema", "regex": "regex", "grammar": grammar}
    constraint = next(({name: value} for own, name in names.items() if (value := getattr(sampling, own))), {})
    return {**neutral(sampling, *_NUMBERS), **{name: getattr(sampling, name) for name in _SAME}, "n": 1, **constraint}
