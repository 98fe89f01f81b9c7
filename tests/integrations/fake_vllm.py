"""vLLM's own gRPC service, as far as this project uses it, over FakeEngine. It answers as vLLM 0.32 does."""

import grpc

from osmosis_grpc.integrations.vllm_grpc import vllm_messages_pb2 as pb
from osmosis_grpc.integrations.vllm_grpc.messages import METHODS
from tests.integrations.fake_engine import CONTEXT, Refused, serving

REASONS = {"stop": pb.FinishInfo.STOP, "length": pb.FinishInfo.LENGTH, "abort": pb.FinishInfo.ABORTED}


class FakeVllm:
    """The methods by their names. `without` are methods that this release does not have."""

    def __init__(self, engine, without=()):
        self.engine, self.without = engine, without
        self.sleeping, self.loras = 0, {}

    def serving(self, port=0):
        return serving(self._add, port)

    def _add(self, server):
        services = {}
        for request, (path, _) in METHODS.items():
            _, service, name = path.split("/")
            if name in self.without:
                continue
            handler = grpc.unary_unary_rpc_method_handler(
                self._method(name),
                request_deserializer=request.FromString,
                response_serializer=lambda reply: reply.SerializeToString(),
            )
            services.setdefault(service, {})[name] = handler
        for service, handlers in services.items():
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])

    def _method(self, name):
        async def method(request, context):
            self.engine.saw(name, request, context)
            try:
                return await getattr(self, name)(request)
            except Refused as error:
                await context.abort(error.status, str(error))

        return method

    async def Generate(self, request):
        self.engine.sampled_with.append(self._parameters(request))
        self.engine.check_logprobs(request.response.output_candidates.top_n)
        limit = request.stopping.max_new_tokens or CONTEXT
        prompt = list(request.token_ids.ids)
        for _ in request.media:  # each placeholder becomes four tokens
            at = prompt.index(PLACEHOLDER)
            prompt[at : at + 1] = [EXPANDED] * 4
        sampled = await self.engine.sample(request.request_id, prompt, limit)
        finish = pb.FinishInfo(num_output_tokens=len(sampled.ids), finish_reason=REASONS[sampled.reason])
        wanted = request.response
        output = pb.SequenceOutput(num_tokens=len(sampled.ids), finish_info=finish)
        if not wanted.HasField("output_text") or wanted.output_text:
            output.text = "a text that was not asked for"
        if wanted.output_token_ids:
            output.token_ids.extend(sampled.ids)
        if wanted.output_logprobs:
            output.logprobs.extend(sampled.logprobs)
        if wanted.output_candidates.top_n:
            for place in sampled.candidates(wanted.output_candidates.top_n):
                output.candidate_tokens.add(
                    tokens=[pb.CandidateTokenInfo.TokenInfo(id=token, logprob=value) for token, value in place[1:]]
                )
        info = pb.PromptInfo(num_prompt_tokens=len(prompt), token_ids=prompt if wanted.prompt_token_ids else [])
        return pb.GenerateResponse(prompt_info=info, outputs=output)

    def _parameters(self, request):
        """What vLLM samples with: an absent value, and a repetition_penalty of 0, are those of the model's file."""
        given = {name: getattr(request.sampling, name) for name in OFF if request.sampling.HasField(name)}
        if given.get("top_p") == 0:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "top_p must be in (0, 1], got 0")
        if request.decoding.repetition_penalty:
            given["repetition_penalty"] = request.decoding.repetition_penalty
        return OFF | {"repetition_penalty": 1.0} | self.engine.generation_config | given

    async def Abort(self, request):
        self.engine.abort(request.request_ids)
        return pb.AbortResponse()

    async def PauseGeneration(self, request):
        self.engine.paused = pb.PauseMode.Name(request.mode)
        if request.mode == pb.PAUSE_MODE_ABORT:
            self.engine.abort(list(self.engine.sampling))
        return pb.PauseGenerationResponse()

    async def ResumeGeneration(self, request):
        self.engine.paused = ""
        return pb.ResumeGenerationResponse()

    async def IsPaused(self, request):
        return pb.IsPausedResponse(paused=bool(self.engine.paused))

    async def GetWeightVersion(self, request):
        return pb.GetWeightVersionResponse(weight_version=self.engine.version)

    async def UpdateWeightVersion(self, request):
        self.engine.version = request.weight_version
        return pb.UpdateWeightVersionResponse()

    async def FinishWeightUpdate(self, request):
        if not self.engine.paused:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION)
        self.engine.version = request.weight_version
        return pb.FinishWeightUpdateResponse()

    async def Sleep(self, request):
        self.sleeping = request.level
        return pb.SleepResponse()

    async def WakeUp(self, request):
        self.sleeping = 0
        return pb.WakeUpResponse()

    async def IsSleeping(self, request):
        return pb.IsSleepingResponse(sleeping=bool(self.sleeping))

    async def InitWeightTransferEngine(self, request):
        self.engine.transferred.append(request.init_info_json.decode())
        return pb.InitWeightTransferEngineResponse()

    async def StartWeightUpdate(self, request):
        self.engine.transferred.append("start")
        return pb.StartWeightUpdateResponse()

    async def UpdateWeights(self, request):
        self.engine.transferred.append(request.update_info_json.decode())
        return pb.UpdateWeightsResponse()

    async def LoadLora(self, request):
        self.loras[request.lora_name] = request.source_path
        return pb.LoadLoraResponse()

    async def UnloadLora(self, request):
        del self.loras[request.lora_name]
        return pb.UnloadLoraResponse()

    async def ListLoras(self, request):
        made = [pb.LoraAdapter(lora_name=name, source_path=path) for name, path in self.loras.items()]
        return pb.ListLorasResponse(adapters=made)

    async def GetModelInfo(self, request):
        return pb.ModelInfo(
            served_model_name="tiny", supports_token_ids_input=True, supports_multimodal=True, tool_call_parser="hermes"
        )

    async def GetServerInfo(self, request):
        return pb.ServerInfo(engine_version="0.0", max_model_len=CONTEXT)


OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
PLACEHOLDER, EXPANDED = 1, 2
"""The id of an image in a prompt, and the id of its tokens."""
