"""The model as a generator of a TokenPolicy: token ids in, token ids and logprobs out."""

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from model import Model
from vocabulary import END

from osmosis_grpc.policies import FinishReason, Generated, GenerateRequest
from osmosis_grpc.trainer import InvalidArgument


class TorchGenerator:
    """Samples one reply at a time, on a thread of its own. `version` is the version of the model's weights.

    The random numbers of a reply depend on `seed`, the session and the prompt. So the order of the calls has no effect.
    """

    def __init__(self, model: Model, seed: int) -> None:
        self.version = ""
        self._model = model
        self._seed = seed
        self._thread = ThreadPoolExecutor(1)
        self._open: set[str] = set()

    async def generate(self, request: GenerateRequest, /) -> Generated:
        sampling = request.sampling
        if sampling.temperature == 0 or sampling.top_p not in (None, 1.0):
            raise InvalidArgument("params", "this model samples with a temperature above 0, and without top_p")
        self._open.add(request.request_id)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._sample, request)
        finally:
            self._open.discard(request.request_id)

    async def abort(self, request_id: str, /) -> None:
        self._open.discard(request_id)

    @torch.inference_mode()
    def _sample(self, request: GenerateRequest) -> Generated:
        prompt = request.prompt_ids.astype(np.int64)
        text = f"{self._seed}/{request.session_id}/{len(prompt)}"
        random = torch.Generator().manual_seed(zlib.crc32(text.encode()))
        most = min(request.sampling.max_tokens, self._model.context - len(prompt))
        temperature = request.sampling.temperature or 1.0
        ids: list[int] = []
        logprobs: list[float] = []
        entered, cache = torch.from_numpy(prompt)[None], None
        while len(ids) < most and END not in ids[-1:] and request.request_id in self._open:
            logits, cache = self._model(entered, cache)
            scores = torch.log_softmax(logits[0, -1] / temperature, dim=-1)
            token = int(torch.multinomial(scores.exp(), 1, generator=random))
            ids.append(token)
            logprobs.append(float(scores[token]))
            entered = torch.tensor([[token]])
        return Generated(
            token_ids=np.array(ids, dtype="<u4"),
            logprobs=np.array(logprobs, dtype="<f4"),
            finish_reason=FinishReason.STOP if END in ids[-1:] else FinishReason.LENGTH,
            weight_version=self.version,
        )
