"""A model server's engine without a model. The servers of fake_vllm.py and fake_smg.py put it on a real socket.

As vLLM and SGLang do, it samples on if the caller is gone, until it is told to abort.
"""

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc


@dataclass(frozen=True)
class Plan:
    """What a call does instead of sampling to its end: it samples `tokens`, and then aborts, fails or waits."""

    tokens: int = 0
    status: grpc.StatusCode | None = None
    waits: bool = False


@dataclass(frozen=True)
class Sampled:
    ids: list
    reason: str
    """stop, length or abort."""

    @property
    def logprobs(self):
        return [logprob(token) for token in self.ids]

    def candidates(self, count):
        """The `count` most likely tokens of each place: the sampled one, and ids below it."""
        return [[(token - n, logprob(token) - n) for n in range(count)] for token in self.ids]


def logprob(token):
    """The logprob of each token with this id; float32 has it exactly."""
    return -(token % 64 + 1) / 64


CONTEXT = 4096
MAX_LOGPROBS = 20
"""vLLM's own limit. It refuses a call that asks for more."""


class Refused(Exception):
    def __init__(self, status, text="so the test wants it"):
        super().__init__(text)
        self.status = status


class FakeEngine:
    """`model` is a function from the ids of a prompt to the ids of the whole reply."""

    def __init__(self, model, *, version="weights-1", generation_config=None):
        self.model, self.version = model, version
        self.generation_config = generation_config or {}
        """The file of the model. vLLM's own service takes absent parameters from it."""
        self.sampled_with = []
        """The parameters of each call after that, by name."""
        self.plans = deque()
        self.paused = ""
        self.transferred = []
        """What came over the transfer of weights."""
        self.received, self.metadata, self.aborted = [], [], []
        self.sampling = {}
        """The events that end the open calls, by request id."""
        self.calls = []
        """The names of all calls, in order."""

    async def sample(self, request_id, prompt, max_tokens):
        """The reply to a prompt, or the part of it that the next plan says."""
        ended = self.sampling[request_id] = asyncio.Event()
        task = asyncio.ensure_future(self._sample(ended, list(prompt), max_tokens))
        task.add_done_callback(lambda _: self.sampling.pop(request_id, None))
        return await asyncio.shield(task)

    async def _sample(self, ended, prompt, max_tokens):
        plan = self.plans.popleft() if self.plans else None
        ids = self.model(prompt)
        if plan and plan.status:
            raise Refused(plan.status)
        if plan:
            if plan.waits:
                await ended.wait()
            return Sampled(ids[: plan.tokens], "abort")
        return Sampled(ids[:max_tokens], "length" if len(ids) > max_tokens else "stop")

    def check_logprobs(self, count):
        """Raise Refused as vLLM refuses a call that asks for too many logprobs at each place."""
        if count > MAX_LOGPROBS:
            text = f"Requested sample logprobs of {count}, which is greater than max allowed: {MAX_LOGPROBS}"
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, text)

    def abort(self, request_ids):
        self.aborted += request_ids
        for request_id in request_ids:
            if request_id in self.sampling:
                self.sampling[request_id].set()

    def saw(self, name, request, context):
        """Keep a call for the test."""
        self.calls.append(name)
        if name == "Generate":
            self.received.append(request)
            self.metadata.append(dict(context.invocation_metadata()))


@asynccontextmanager
async def serving(add, port=0):
    """A server on loopback; port 0 is any free one. `add` registers its services. Gives HOST:PORT."""
    server = grpc.aio.server()
    add(server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
