"""Converts calls of a generator to the messages of smg-grpc-proto, and its replies back: one class for each engine."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from smg_grpc_proto import sglang_scheduler_pb2 as sglang
from smg_grpc_proto import sglang_scheduler_pb2_grpc as sglang_grpc
from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto import vllm_engine_pb2_grpc as vllm_grpc
from smg_grpc_proto.generated import common_pb2 as common

from osmosis_grpc.integrations.top_logprobs import top_logprob_extras
from osmosis_grpc.policies.generation import FinishReason, Generated, GenerateRequest
from osmosis_grpc.policies.sampling import Sampling
from osmosis_grpc.protocol.errors import CallError, Internal, InvalidArgument, Unavailable

MAX_LOGPROBS = 20
"""vLLM's default limit, which --max-logprobs raises."""
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORTED}


class Engine(Protocol):
    """The service of one engine. Messages are those of smg-grpc-proto."""

    names_weights: bool
    """Whether the reply of GetModelInfo has the version of the weights."""

    def stub(self, channel: Any) -> Any:
        """Return the client of the service."""
        ...

    def to_message(self, request: GenerateRequest) -> Any:
        """Return the request of Generate. Raises InvalidArgument for a parameter that it cannot carry."""
        ...

    def from_message(self, request: GenerateRequest, reply: Any, version: str) -> Generated:
        """Return the result of a call. Raises Internal for a reply that contradicts the request or itself."""
        ...

    def refusal(self, request: GenerateRequest, error: Internal) -> CallError:
        """Return the error for a call that the engine refuses with `error`."""
        ...

    def abort_message(self, request_id: str) -> Any:
        """Return the request of Abort."""
        ...

    def model_info_message(self) -> Any:
        """Return the request of GetModelInfo."""
        ...

    def tokenizer_message(self) -> Any:
        """Return the request of GetTokenizer."""
        ...


class _VllmEngine:
    """vllm.grpc.engine.VllmEngine: 0 switches top_k and min_p off; absent logprobs mean none."""

    names_weights = False

    def stub(self, channel: Any) -> Any:
        return vllm_grpc.VllmEngineStub(channel)

    def to_message(self, request: GenerateRequest) -> Any:
        sampling = request.sampling
        if sampling.seed is not None and not -(2**31) <= sampling.seed < 2**31:
            raise InvalidArgument("params.seed", f"is {sampling.seed}; this service takes 32 bits")
        return vllm.GenerateRequest(
            request_id=request.request_id,
            tokenized=vllm.TokenizedInput(input_ids=request.prompt_ids.tolist()),
            sampling_params=vllm.SamplingParams(
                **_numbers(sampling),
                top_k=max(0, sampling.top_k or 0),
                max_tokens=sampling.max_tokens,
                logprobs=_counted(sampling),
                seed=sampling.seed,
                **_constraint(sampling, {"json_schema": "json_schema", "regex": "regex", "grammar": "grammar"}),
            ),
        )

    def from_message(self, request: GenerateRequest, reply: Any, version: str) -> Generated:
        return _generated(request, reply, version)

    def refusal(self, request: GenerateRequest, error: Internal) -> CallError:
        count = _counted(request.sampling)
        if count <= MAX_LOGPROBS or "logprobs" not in str(error):
            return error
        most = f"ask for at most {MAX_LOGPROBS - 1}, or start vLLM with --max-logprobs {count}"
        return InvalidArgument("params.top_logprobs", f"the sampled token counts as one of them: {most}; {error}")

    def abort_message(self, request_id: str) -> Any:
        return vllm.AbortRequest(request_ids=[request_id])

    def model_info_message(self) -> Any:
        return vllm.GetModelInfoRequest()

    def tokenizer_message(self) -> Any:
        return common.GetTokenizerRequest()


class _SglangScheduler:
    """sglang.grpc.scheduler.SglangScheduler: absent numbers mean 0, and not the engine's defaults."""

    names_weights = True

    def stub(self, channel: Any) -> Any:
        return sglang_grpc.SglangSchedulerStub(channel)

    def to_message(self, request: GenerateRequest) -> Any:
        sampling = request.sampling
        if sampling.seed is not None:
            raise InvalidArgument("params.seed", "SGLang's gRPC service takes no seed")
        return sglang.GenerateRequest(
            request_id=request.request_id,
            tokenized=sglang.TokenizedInput(input_ids=request.prompt_ids.tolist()),
            sampling_params=sglang.SamplingParams(
                **_numbers(sampling),
                top_k=sampling.top_k if sampling.top_k is not None and sampling.top_k > 0 else -1,
                max_new_tokens=sampling.max_tokens,
                no_stop_trim=True,  # the token that ends the turn stays a part of the reply
                **_constraint(sampling, {"json_schema": "json_schema", "regex": "regex", "grammar": "ebnf_grammar"}),
            ),
            return_logprob=True,
            logprob_start_len=-1,  # 0 would compute the logprobs of the whole prompt
            top_logprobs_num=sampling.top_logprobs,
        )

    def from_message(self, request: GenerateRequest, reply: Any, version: str) -> Generated:
        return _generated(request, reply, version)

    def refusal(self, request: GenerateRequest, error: Internal) -> CallError:
        return error

    def abort_message(self, request_id: str) -> Any:
        return sglang.AbortRequest(request_id=request_id, reason="the reply is no longer wanted")

    def model_info_message(self) -> Any:
        return sglang.GetModelInfoRequest()

    def tokenizer_message(self) -> Any:
        return common.GetTokenizerRequest()


ENGINES: Mapping[str, Engine] = {"vllm": _VllmEngine(), "sglang": _SglangScheduler()}
"""The engines by name."""


def _counted(sampling: Sampling) -> int:
    """Return how many logprobs to ask vLLM for at each place. The sampled token counts as one of them."""
    return sampling.top_logprobs + 1 if sampling.top_logprobs else 0


def _numbers(sampling: Sampling) -> dict[str, Any]:
    """Return the parameters that have equal names and meanings in both services."""
    return {
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "min_p": sampling.min_p or 0.0,
        "presence_penalty": sampling.presence_penalty or 0.0,
        "frequency_penalty": sampling.frequency_penalty or 0.0,
        "repetition_penalty": 1.0 if sampling.repetition_penalty is None else sampling.repetition_penalty,
        "stop": sampling.stop,
        "stop_token_ids": sampling.stop_token_ids,
        "ignore_eos": sampling.ignore_eos,
        "n": 1,
    }


def _constraint(sampling: Sampling, names: Mapping[str, str]) -> dict[str, str]:
    """Return the first constraint that is set, under its name in the service."""
    return next(({name: value} for own, name in names.items() if (value := getattr(sampling, own))), {})


def _generated(request: GenerateRequest, reply: Any, version: str) -> Generated:
    if reply.finish_reason == "error":
        raise Unavailable("the engine failed while it sampled")
    reason = _REASONS.get(reply.finish_reason)
    if reason is None:
        raise Internal(f"the engine's reply has the finish reason {reply.finish_reason!r:.80}, which is unknown")
    if reply.prompt_tokens not in (0, len(request.prompt_ids)):
        raise Internal(f"the engine sampled from {reply.prompt_tokens} tokens, and got {len(request.prompt_ids)}")
    ids = np.array(reply.output_ids, dtype="<u4")
    if len(ids) < reply.completion_tokens:
        raise Internal(f"the engine's reply has {len(ids)} token ids for {reply.completion_tokens} tokens")
    given = reply.output_logprobs
    if given.token_logprobs and list(given.token_ids) != ids.tolist():
        raise Internal("the engine's reply has logprobs of other tokens than its own")
    logprobs = np.array(given.token_logprobs, dtype="<f4") if len(given.token_logprobs) == len(ids) else None
    rows = [list(zip(place.token_ids, place.values, strict=True)) for place in given.top_logprobs]
    return Generated(
        token_ids=ids,
        logprobs=logprobs,
        finish_reason=reason,
        weight_version=version,
        extras=top_logprob_extras(ids, logprobs, rows, request.sampling.top_logprobs),
        cached_tokens=reply.cached_tokens,
    )
