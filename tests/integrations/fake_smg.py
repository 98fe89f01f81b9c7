"""The services of smg-grpc-proto for vLLM and SGLang over FakeEngine, made from the package's own servicer classes."""

import hashlib
import io
import zipfile

from smg_grpc_proto import sglang_scheduler_pb2 as sglang
from smg_grpc_proto import sglang_scheduler_pb2_grpc as sglang_grpc
from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto import vllm_engine_pb2_grpc as vllm_grpc
from smg_grpc_proto.generated import common_pb2 as common

from tests.integrations.fake_engine import CONTEXT, Refused, serving


class _Servicer:
    """The common part of both services. `pb` are the messages; `tokenizer` is the folder that the server sends."""

    def __init__(self, engine, tokenizer=None):
        self.engine, self.tokenizer = engine, tokenizer

    def serving(self, port=0):
        return serving(lambda server: self.add(self, server), port)

    async def Generate(self, request, context):
        self.engine.saw("Generate", request, context)
        try:
            self.check(request)
            sampled = await self.engine.sample(
                request.request_id, request.tokenized.input_ids, self.limit(request.sampling_params)
            )
        except Refused as error:
            await context.abort(error.status, str(error))
        complete = self.pb.GenerateComplete(
            output_ids=sampled.ids,
            finish_reason=sampled.reason,
            prompt_tokens=len(request.tokenized.input_ids),
            completion_tokens=len(sampled.ids),
            cached_tokens=3,
        )
        count = self.logprobs(request)
        if count is not None:
            complete.output_logprobs.token_logprobs.extend(sampled.logprobs)
            complete.output_logprobs.token_ids.extend(sampled.ids)
            for place in sampled.candidates(count) if count else ():
                complete.output_logprobs.top_logprobs.add(
                    token_ids=[token for token, _ in place], values=[value for _, value in place]
                )
        yield self.pb.GenerateResponse(complete=complete)

    def check(self, request):
        """Raise Refused for a request that the engine refuses."""

    async def GetModelInfo(self, request, context):
        self.engine.saw("GetModelInfo", request, context)
        named = {"weight_version": self.engine.version} if self.pb is sglang else {}
        return self.pb.GetModelInfoResponse(served_model_name="tiny", max_context_length=CONTEXT, **named)

    async def GetTokenizer(self, request, context):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as files:
            files.writestr("../outside.txt", "no")
            for file in sorted(self.tokenizer.iterdir()):
                files.write(file, file.name)
        data = packed.getvalue()
        yield common.GetTokenizerChunk(data=data[:50])
        yield common.GetTokenizerChunk(data=data[50:], sha256=hashlib.sha256(data).hexdigest())


class FakeVllmEngine(_Servicer, vllm_grpc.VllmEngineServicer):
    pb = vllm
    add = staticmethod(vllm_grpc.add_VllmEngineServicer_to_server)

    def limit(self, params):
        return params.max_tokens if params.HasField("max_tokens") else CONTEXT

    def check(self, request):
        self.engine.check_logprobs(request.sampling_params.logprobs)

    def logprobs(self, request):
        params = request.sampling_params
        return params.logprobs if params.HasField("logprobs") else None

    async def Abort(self, request, context):
        self.engine.saw("Abort", request, context)
        self.engine.abort(request.request_ids)
        return vllm.AbortResponse()


class FakeSglang(_Servicer, sglang_grpc.SglangSchedulerServicer):
    pb = sglang
    add = staticmethod(sglang_grpc.add_SglangSchedulerServicer_to_server)

    def limit(self, params):
        return params.max_new_tokens if params.HasField("max_new_tokens") else 128

    def logprobs(self, request):
        return request.top_logprobs_num if request.return_logprob else None

    async def Abort(self, request, context):
        self.engine.saw("Abort", request, context)
        self.engine.abort([request.request_id])
        return sglang.AbortResponse(success=True)
