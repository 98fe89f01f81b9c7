"""Pauses vLLM and names its weights, for a trainer that changes the weights while rollouts run."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from google.protobuf.message import Message

from osmosis_grpc.integrations._model_server import NO_CREDENTIALS, ModelClient
from osmosis_grpc.integrations.vllm_grpc import vllm_messages_pb2 as pb
from osmosis_grpc.integrations.vllm_grpc.messages import call
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.policies.generation import UNNAMED
from osmosis_grpc.protocol.errors import InvalidArgument


class PauseMode(StrEnum):
    """What a pause does with requests that are open."""

    ABORT = "abort"
    """They end at once. TokenPolicy asks again for the rest of each reply, with the tokens that were sampled."""
    WAIT = "wait"
    """They are answered first."""
    KEEP = "keep"
    """They stand still, and go on with the new weights."""


_MODES = {PauseMode.ABORT: pb.PAUSE_MODE_ABORT, PauseMode.WAIT: pb.PAUSE_MODE_WAIT, PauseMode.KEEP: pb.PAUSE_MODE_KEEP}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServer:
    """Facts about a vLLM server."""

    engine_version: str
    model: str
    """The served name of the model."""
    context_length: int
    """The most tokens of a prompt and its reply together."""
    takes_token_ids: bool
    takes_media: bool
    tool_call_parser: str
    """The name of the server's own parser of tool calls; empty for none."""


class VllmControl(ModelClient):
    """Talks to the Control service of vLLM. Used as `async with VllmControl("127.0.0.1:50051") as vllm`.

    Every method raises CallError if the call fails.

    Args:
        target: HOST:PORT of vLLM.
        credentials: A token and TLS, for a proxy.
        timeout: The most seconds of each call; None for no limit.
    """

    def __init__(
        self, target: str, *, credentials: Credentials = NO_CREDENTIALS, timeout: float | None = 600.0
    ) -> None:
        super().__init__(target, credentials)
        self._timeout = timeout

    async def pause(self, mode: PauseMode = PauseMode.ABORT, *, clear_cache: bool = True) -> None:
        """Stop the sampling.

        Args:
            mode: What becomes of open requests.
            clear_cache: Whether the cached prefixes are dropped, which new weights need.
        """
        await self._call(pb.PauseGenerationRequest(mode=_MODES[mode], clear_cache=clear_cache))

    async def resume(self) -> None:
        """Continue the sampling."""
        await self._call(pb.ResumeGenerationRequest())

    async def is_paused(self) -> bool:
        """Return whether the sampling is stopped."""
        reply: pb.IsPausedResponse = await self._call(pb.IsPausedRequest())
        return reply.paused

    async def weight_version(self) -> str:
        """Return the name of the weights; "default" if nobody has named them."""
        reply: pb.GetWeightVersionResponse = await self._call(pb.GetWeightVersionRequest())
        return reply.weight_version

    async def set_weight_version(self, version: str) -> None:
        """Name the weights after loading them in a way that does not name them.

        Raises InvalidArgument for the name "default", which means that the weights have no name.
        """
        if version == UNNAMED:
            raise InvalidArgument("version", f"{version!r} means that nobody has named the weights; use another name")
        await self._call(pb.UpdateWeightVersionRequest(weight_version=version))

    async def finish_weight_update(self, version: str) -> None:
        """End an update over vLLM's weight transfer, and name the new weights. vLLM has to be paused."""
        await self._call(pb.FinishWeightUpdateRequest(weight_version=version))

    @asynccontextmanager
    async def updating(self, version: str, mode: PauseMode = PauseMode.ABORT) -> AsyncIterator[None]:
        """Pause, run the body, which loads the weights, name them, and resume.

        If the body fails, vLLM stays paused, because its weights may be half old and half new.

        Args:
            version: The name of the new weights.
            mode: What becomes of open requests.
        """
        await self.pause(mode)
        yield
        await self.set_weight_version(version)
        await self.resume()

    async def server(self) -> VllmServer:
        """Return facts about the server."""
        model: pb.ModelInfo = await self._call(pb.GetModelInfoRequest())
        server: pb.ServerInfo = await self._call(pb.GetServerInfoRequest())
        return VllmServer(
            engine_version=server.engine_version,
            model=model.served_model_name,
            context_length=server.max_model_len,
            takes_token_ids=model.supports_token_ids_input,
            takes_media=model.supports_multimodal,
            tool_call_parser=model.tool_call_parser,
        )

    async def _call(self, request: Message) -> Any:
        return await self._server.answer(call(self._server, request, timeout=self._timeout))
