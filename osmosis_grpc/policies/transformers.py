"""A generator that samples from a transformers model in this process.

    TokenPolicy(ChatRenderer(tokenizer), TransformersGenerator(model, tokenizer))

Install torch and transformers yourself. torch runs on a separate thread, so that the event loop stays free. Calls that
wait are sampled together as a batch.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from osmosis_grpc.policies.generation import FinishReason, Generated, GenerateRequest
from osmosis_grpc.policies.sampling import refuse
from osmosis_grpc.protocol.errors import CallError, Internal, InvalidArgument, ResourceExhausted
from osmosis_grpc.supervise import DaemonThreads, OnFailure, Supervisor, job

if TYPE_CHECKING:
    import torch

__all__ = ["TransformersGenerator"]

log = logging.getLogger(__name__)

SAMPLE = job("policies.transformers", OnFailure.REPORT)
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
_LIMITS = ("json_schema", "regex", "grammar", "min_tokens", "bad_words", "logit_bias", "allowed_token_ids")
_UNSUPPORTED = (*_PENALTIES, *_LIMITS, "top_logprobs")
MOST_WAITING = 4096
"""At most this many calls wait. Further calls raise ResourceExhausted."""


TAIL = 8
"""A stop text of n bytes is searched for in the last n + TAIL tokens."""


class SampledRow:
    """The tokens of one call. take() runs on the thread of the model, everything else on the event loop."""

    def __init__(
        self, request: GenerateRequest, most: int, end_ids: frozenset[int], decode: Callable[[list[int]], str]
    ) -> None:
        self.request = request
        self.prompt = request.prompt_ids
        self.result: asyncio.Future[Generated] = asyncio.get_running_loop().create_future()
        self.ids: list[int] = []
        self.random: Any = None
        """The torch.Generator of the call, made for its first token."""
        self.interrupted = False
        self.ended: FinishReason | None = None
        self._logprobs: list[float] = []
        self._most = most
        sampling = request.sampling
        self._end_ids = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else end_ids)
        self._decode = decode
        self._tail = max((len(text.encode()) for text in sampling.stop), default=0) + TAIL

    def take(self, token: int, logprob: float) -> None:
        """Add a token, and set `ended` if it is the last one."""
        if self.interrupted:
            self.ended = FinishReason.ABORTED
            return
        self.ids.append(token)
        self._logprobs.append(logprob)
        if token in self._end_ids or self._has_stop_text():
            self.ended = FinishReason.STOP
        elif len(self.ids) >= self._most:
            self.ended = FinishReason.LENGTH

    def finish(self, version: str) -> None:
        """Set the result, unless the call was cancelled."""
        if self.result.done():
            return
        self.result.set_result(
            Generated(
                token_ids=np.array(self.ids, dtype="<u4"),
                logprobs=np.array(self._logprobs, dtype="<f4"),
                finish_reason=self.ended or FinishReason.ABORTED,
                weight_version=version,
            )
        )

    def fail(self, error: BaseException) -> None:
        """Let the call raise an error, unless it was cancelled."""
        if not self.result.done():
            self.result.set_exception(error)

    def _has_stop_text(self) -> bool:
        stop = self.request.sampling.stop
        if not stop:
            return False
        text = self._decode(self.ids[-self._tail :])
        return any(text_ in text for text_ in stop)


class TransformersGenerator:
    """Samples from a causal language model of transformers.

    Logprobs are log_softmax(logits / temperature) in float32 over the whole vocabulary, even with top_p and top_k. With
    temperature 0, the most likely token is taken, with its logprob at temperature 1. Calls with penalties, a grammar or
    media raise InvalidArgument.

    Args:
        model: The model, on any device.
        tokenizer: Decodes tokens to find stop texts.
        end_ids: The tokens that end a turn; None for those of the tokenizer and of the model's generation_config.
        batch: The most calls that are sampled together.
        gather: How many seconds a batch waits for further calls before it begins.
        version: The version of the weights.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        end_ids: Sequence[int] | None = None,
        batch: int = 8,
        gather: float = 0.01,
        version: str = "",
    ) -> None:
        if not callable(model) or not hasattr(model, "config"):
            raise TypeError(
                f"model: a {type(model).__name__} is not a model; pass AutoModelForCausalLM.from_pretrained(...)"
            )
        if batch < 1:
            raise ValueError(f"batch: {batch} is less than 1")
        self.version = version
        self._model = model
        self._decode = tokenizer.decode
        self._end_ids = frozenset(_end_ids(model, tokenizer) if end_ids is None else end_ids)
        self._batch = batch
        self._gather = gather
        self._waiting: deque[SampledRow] = deque()
        self._rows: dict[str, SampledRow] = {}
        self._threads = DaemonThreads()
        self._running: asyncio.Task[None] | None = None
        self._updates = 0
        """The number of update_weights() that wait or run. No batch begins during one."""
        self._options = _options(model)
        self._context: int | None = getattr(model.config, "max_position_embeddings", None)

    async def generate(self, request: GenerateRequest, /) -> Generated:
        """Return the sampled tokens. After abort() or update_weights(abort=True), the result is ABORTED."""
        row = self._row(request)
        if len(self._waiting) >= MOST_WAITING:
            raise ResourceExhausted(f"{MOST_WAITING} calls wait for the model", retry_after=1.0)
        self._waiting.append(row)
        self._rows[request.request_id] = row
        self._start()
        try:
            return await row.result
        finally:
            row.interrupted = True  # ends the sampling if this call was cancelled
            del self._rows[request.request_id]

    async def abort(self, request_id: str, /) -> None:
        """Stop the sampling of a call."""
        row = self._rows.get(request_id)
        if row is not None:
            row.interrupted = True

    @asynccontextmanager
    async def update_weights(self, version: str, *, abort: bool = False) -> AsyncIterator[None]:
        """Pause sampling while the weights change: `async with generator.update_weights("step-2"): ...`.

        Args:
            version: The version of the new weights. If the block raises, the old version stays.
            abort: Whether to end the calls of the running batch at once with ABORTED, so that TokenPolicy continues
                them with the new weights. By default, this waits until the batch has ended.
        """
        self._updates += 1
        try:
            running = self._running
            if running is not None:
                for row in self._rows.values() if abort else ():
                    row.interrupted = row.interrupted or row not in self._waiting
                await asyncio.wait([running])
            yield
            self.version = version
        finally:
            self._updates -= 1
            self._start()

    # Batches.

    def _row(self, request: GenerateRequest) -> SampledRow:
        sampling = request.sampling
        refuse(sampling, _UNSUPPORTED, "TransformersGenerator")
        if request.media:
            raise InvalidArgument("messages", "have media, and TransformersGenerator takes texts only")
        prompt = len(request.prompt_ids)
        if not prompt:
            raise InvalidArgument("messages", "have no tokens")
        most = sampling.max_tokens
        if self._context is not None:
            if prompt >= self._context:
                raise InvalidArgument("messages", f"have {prompt} tokens, and the model takes {self._context}")
            most = min(most, self._context - prompt)
        return SampledRow(request, most, self._end_ids, self._decode)

    def _start(self) -> None:
        if self._running is None and self._waiting and not self._updates:
            self._running = Supervisor("transformers").start(SAMPLE, self._run, report=self._fail)
            self._running.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running = None
        self._start()

    def _fail(self, error: BaseException) -> None:
        for row in self._rows.values():
            row.fail(Internal(f"the sampling failed: {type(error).__name__}: {error}"))
        self._waiting.clear()

    async def _run(self) -> None:
        if len(self._waiting) < self._batch:
            await asyncio.sleep(self._gather)
            if self._updates:
                return
        rows: list[SampledRow] = []
        while self._waiting and len(rows) < self._batch:
            row = self._waiting.popleft()
            if row.interrupted:
                row.finish(self.version)
            else:
                rows.append(row)
        if not rows:
            return
        try:
            await self._threads.run(lambda: self._sample(rows))
        except CallError as error:
            for row in rows:
                row.fail(error)
        except Exception as error:  # torch and models raise errors of many types
            log.exception("the model failed")
            for row in rows:
                row.fail(Internal(f"the model failed: {type(error).__name__}: {str(error)[:500]}"))
        else:
            for row in rows:
                row.finish(self.version)
        finally:
            for row in rows:
                row.interrupted = True  # ends the thread if this task was cancelled

    def _sample(self, rows: list[SampledRow]) -> None:
        """Sample the tokens of rows until all have ended. Runs on the thread."""
        import torch

        if self._model.training:
            self._model.eval()
        device = self._model.device
        width = max(len(row.prompt) for row in rows)
        ids = np.zeros((len(rows), width), dtype=np.int64)
        mask = np.zeros((len(rows), width), dtype=np.int64)
        for number, row in enumerate(rows):  # pad on the left
            ids[number, width - len(row.prompt) :] = row.prompt
            mask[number, width - len(row.prompt) :] = 1
        entered = torch.from_numpy(ids).to(device)
        seen = torch.from_numpy(mask).to(device)
        positions = (seen.cumsum(-1) - 1).clamp(min=0)
        cache: dict[str, Any] = {}
        with torch.inference_mode():
            while True:
                out = self._model(
                    input_ids=entered,
                    attention_mask=seen,
                    position_ids=positions,
                    use_cache=True,
                    **cache,
                    **self._options,
                )
                cache = cache_of(out)
                logits = out.logits[:, -1].float()
                for number, row in enumerate(rows):
                    row.take(*_draw(logits[number], row))
                left = [number for number, row in enumerate(rows) if not row.ended]
                if not left:
                    return
                if len(left) < len(rows):
                    kept = torch.tensor(left, device=device)
                    rows = [rows[number] for number in left]
                    for each in cache.values():
                        each.batch_select_indices(kept)
                    seen, positions = seen[kept], positions[kept]
                entered = torch.tensor([[row.ids[-1]] for row in rows], device=device)
                seen = torch.cat([seen, seen.new_ones((len(rows), 1))], dim=-1)
                positions = positions[:, -1:] + 1


def cache_of(out: Any) -> dict[str, Any]:
    """Return the cache in the output of a model, by the name under which the model takes it.

    transformers 5.24 has renamed `past_key_values` to `cache`, and models outside of it may have either name. Raises
    TypeError if there is none.
    """
    for name in ("cache", "past_key_values"):
        if (found := getattr(out, name, None)) is not None:
            return {name: found}
    raise TypeError(f"the model has returned no cache in its {type(out).__name__}, although use_cache is True")


def _draw(logits: "torch.Tensor", row: SampledRow) -> tuple[int, float]:
    import torch

    sampling = row.request.sampling
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    scores = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    if not temperature:
        token = int(scores.argmax())
        return token, float(scores[token])
    if row.random is None:
        row.random = torch.Generator()
        if sampling.seed is None:
            row.random.seed()
        else:
            row.random.manual_seed(sampling.seed)
    chances = _truncated(scores.exp().cpu(), sampling.top_k, sampling.top_p, sampling.min_p)
    token = int(torch.multinomial(chances, 1, generator=row.random))
    return token, float(scores[token])


def _truncated(chances: "torch.Tensor", top_k: int | None, top_p: float | None, min_p: float | None) -> "torch.Tensor":
    """Return the probabilities with zeros for the tokens that top_k, top_p and min_p exclude."""
    import torch

    if top_k is not None and 0 < top_k < len(chances):
        kept = torch.zeros_like(chances)
        best = chances.topk(top_k)
        chances = kept.index_copy(0, best.indices, best.values)
    if top_p is not None and top_p < 1:
        ordered, tokens = chances.sort(descending=True)
        before = ordered.cumsum(0) - ordered
        least = max(top_p * float(ordered.sum()), 1e-12)  # keep at least the most likely token
        chances = torch.zeros_like(chances).index_copy(0, tokens, ordered * (before < least))
    if min_p:
        chances = chances * (chances >= min_p * chances.max())
    return chances


def _end_ids(model: Any, tokenizer: Any) -> set[int]:
    found: set[int] = set()
    for owner in (tokenizer, getattr(model, "generation_config", None)):
        given = getattr(owner, "eos_token_id", None)
        found.update([given] if isinstance(given, int) else given or ())
    if not found:
        raise ValueError("end_ids: neither the tokenizer nor the model names the token that ends a turn; give end_ids")
    return found


def _options(model: Any) -> dict[str, Any]:
    """Return options that make a model compute only the logits of the last token, if it supports that."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
