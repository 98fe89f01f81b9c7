"""The methods of vLLM's own gRPC service, and the conversion of a generator's calls to its messages."""

from collections.abc import Awaitable, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import Message

from osmosis_grpc.integrations._model_server import ModelChannel, generated, neutral, top_k_of
from osmosis_grpc.integrations.vllm_grpc import vllm_messages_pb2 as pb
from osmosis_grpc.policies.generation import FinishReason, Generated, GenerateRequest
from osmosis_grpc.policies.media import Media, Modality
from osmosis_grpc.policies.sampling import Sampling, refuse
from osmosis_grpc.protocol.errors import Internal

METHODS: Mapping[type[Message], tuple[str, type[Message]]] = {
    pb.GenerateRequest: ("/vllm.Inference/Generate", pb.GenerateResponse),
    pb.AbortRequest: ("/vllm.Control/Abort", pb.AbortResponse),
    pb.PauseGenerationRequest: ("/vllm.Control/PauseGeneration", pb.PauseGenerationResponse),
    pb.ResumeGenerationRequest: ("/vllm.Control/ResumeGeneration", pb.ResumeGenerationResponse),
    pb.IsPausedRequest: ("/vllm.Control/IsPaused", pb.IsPausedResponse),
    pb.GetWeightVersionRequest: ("/vllm.Control/GetWeightVersion", pb.GetWeightVersionResponse),
    pb.FinishWeightUpdateRequest: ("/vllm.Control/FinishWeightUpdate", pb.FinishWeightUpdateResponse),
    pb.UpdateWeightVersionRequest: ("/vllm.Control/UpdateWeightVersion", pb.UpdateWeightVersionResponse),
    pb.SleepRequest: ("/vllm.Control/Sleep", pb.SleepResponse),
    pb.WakeUpRequest: ("/vllm.Control/WakeUp", pb.WakeUpResponse),
    pb.IsSleepingRequest: ("/vllm.Control/IsSleeping", pb.IsSleepingResponse),
    pb.InitWeightTransferEngineRequest: ("/vllm.Control/InitWeightTransferEngine", pb.InitWeightTransferEngineResponse),
    pb.StartWeightUpdateRequest: ("/vllm.Control/StartWeightUpdate", pb.StartWeightUpdateResponse),
    pb.UpdateWeightsRequest: ("/vllm.Control/UpdateWeights", pb.UpdateWeightsResponse),
    pb.LoadLoraRequest: ("/vllm.Control/LoadLora", pb.LoadLoraResponse),
    pb.UnloadLoraRequest: ("/vllm.Control/UnloadLora", pb.UnloadLoraResponse),
    pb.ListLorasRequest: ("/vllm.Control/ListLoras", pb.ListLorasResponse),
    pb.GetModelInfoRequest: ("/vllm.Control/GetModelInfo", pb.ModelInfo),
    pb.GetServerInfoRequest: ("/vllm.Control/GetServerInfo", pb.ServerInfo),
}
"""The path and the reply type of each method, by request type. All methods are unary."""


def call(
    server: ModelChannel, request: Message, *, timeout: float | None = None, session_id: str = ""
) -> Awaitable[Any]:
    """Send a request, and return the call to await. `timeout` is in seconds; None for no limit."""
    path, reply = METHODS[type(request)]
    method: Any = server.open().unary_unary(
        path, request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString
    )
    sent: Awaitable[Any] = method(request, timeout=timeout, metadata=server.metadata(session_id))
    return sent


EVERY_TOKEN = 2**31 - 1
"""A `top_k` that excludes no token. Older releases of vLLM replace 0 by the model's default."""

_REASONS = {
    pb.FinishInfo.LENGTH: FinishReason.LENGTH,
    pb.FinishInfo.STOP: FinishReason.STOP,
    pb.FinishInfo.ABORTED: FinishReason.ABORTED,
}
_MODALITIES = {Modality.IMAGE: pb.MODALITY_IMAGE, Modality.VIDEO: pb.MODALITY_VIDEO, Modality.AUDIO: pb.MODALITY_AUDIO}


def to_message(request: GenerateRequest, model: str, lora: str) -> pb.GenerateRequest:
    """Return the message for a call."""
    sampling = request.sampling
    refuse(sampling, ["bad_words"], "vLLM's gRPC service; VllmHttpGenerator takes it")
    return pb.GenerateRequest(
        request_id=request.request_id,
        model=model,
        lora_name=lora,
        token_ids=pb.TokenIds(ids=request.prompt_ids.tolist()),
        **neutral(sampling, "temperature"),
        sampling=pb.RandomSampling(
            **neutral(sampling, "top_p", "min_p"), top_k=top_k_of(sampling, EVERY_TOKEN), seed=sampling.seed
        ),
        decoding=_decoding(sampling),
        stopping=pb.StoppingCriteria(
            max_new_tokens=sampling.max_tokens,
            min_new_tokens=sampling.min_tokens,
            stop_token_ids=sampling.stop_token_ids,
            stop_strings=sampling.stop,
            ignore_eos=sampling.ignore_eos,
        ),
        response=pb.ResponseOptions(
            prompt_token_ids=bool(request.media),
            output_text=False,
            output_token_ids=True,
            output_logprobs=True,
            output_candidates=pb.CandidateTokens(top_n=sampling.top_logprobs) if sampling.top_logprobs else None,
        ),
        priority=request.priority,
        session_id=request.session_id,
        media=map(_media, request.media),
    )


def _decoding(sampling: Sampling) -> pb.DecodingParameters:
    penalties = neutral(sampling, "presence_penalty", "frequency_penalty", "repetition_penalty")
    made = pb.DecodingParameters(
        **penalties, logit_bias=sampling.logit_bias, allowed_token_ids=sampling.allowed_token_ids
    )
    if sampling.json_schema:
        made.json = sampling.json_schema
    elif sampling.regex:
        made.regex = sampling.regex
    elif sampling.grammar:
        made.grammar = sampling.grammar
    return made


def _media(media: Media) -> pb.MediaItem:
    item = pb.MediaItem(modality=_MODALITIES[media.modality], mime_type=media.mime_type)
    if media.url:
        item.url = media.url
    else:
        item.raw_bytes = media.data
    return item


def from_message(request: GenerateRequest, reply: pb.GenerateResponse, version: str) -> Generated:
    """Return the result of a call. Raises Internal if the reply lacks ids, or contradicts the request or itself."""
    output = reply.outputs
    prompt = reply.prompt_info
    if request.media and len(prompt.token_ids) < max(1, prompt.num_prompt_tokens):
        raise Internal("vLLM's reply lacks the tokens of the prompt with its media")
    return generated(
        request,
        _REASONS.get(output.finish_info.finish_reason),
        output.finish_info.finish_reason,
        ids=output.token_ids,
        sampled=max(output.finish_info.num_output_tokens, output.num_tokens),
        prompt_tokens=prompt.num_prompt_tokens,
        logprobs=output.logprobs,
        candidates=[[(token.id, token.logprob) for token in place.tokens] for place in output.candidate_tokens],
        weight_version=version,
        prompt_ids=np.array(prompt.token_ids, dtype="<u4") if request.media else None,
    )
