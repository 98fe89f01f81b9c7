"""Pauses vLLM and names its weights, for a trainer that changes the weights while rollouts run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from osmosis_grpc.integrations._model_server import NO_CREDENTIALS, ModelClient
from osmosis_grpc.integrations._vllm_weights import PauseMode, WeightControl, checked_version
from osmosis_grpc.integrations.vllm_grpc import vllm_messages_pb2 as pb
from osmosis_grpc.integrations.vllm_grpc.messages import call
from osmosis_grpc.network.credentials import Credentials

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
    """The name of the server's tool call parser; empty for none."""


class VllmControl(ModelClient, WeightControl):
    """A client of vLLM's Control service. Use it as `async with VllmControl("127.0.0.1:50051") as vllm`.

    Every method raises CallError if the call fails.

    Args:
        target: HOST:PORT of vLLM.
        credentials: A token and TLS, for a proxy.
        timeout: How many seconds each call may take; None for no limit.
    """

    def __init__(
        self, target: str, *, credentials: Credentials = NO_CREDENTIALS, timeout: float | None = 600.0
    ) -> None:
        super().__init__(target, credentials)
        self._timeout = timeout

    async def pause(self, mode: PauseMode = PauseMode.ABORT, *, clear_cache: bool = True) -> None:
        """Stop the sampling.

        Args:
            mode: What to do with open requests.
            clear_cache: Whether to drop the cached prefixes, which new weights make necessary.
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
        """Return the name of the weights, or "default" if they have none."""
        reply: pb.GetWeightVersionResponse = await self._call(pb.GetWeightVersionRequest())
        return reply.weight_version

    async def set_weight_version(self, version: str) -> None:
        """Name the weights, if the way in which they were loaded does not.

        Raises InvalidArgument for the name "default", which vLLM uses for weights without a name.
        """
        await self._call(pb.UpdateWeightVersionRequest(weight_version=checked_version(version)))

    async def finish_weight_update(self, version: str) -> None:
        """End an update over vLLM's weight transfer, and name the new weights. vLLM must be paused."""
        await self._call(pb.FinishWeightUpdateRequest(weight_version=version))

    async def sleep(self, level: int = 1, mode: PauseMode = PauseMode.ABORT) -> None:
        """Pause, and free the GPU's memory. Needs `--enable-sleep-mode`.

        Args:
            level: 1 moves the weights to the CPU's memory; 2 drops them, so load new ones after wake_up().
            mode: What to do with open requests.
        """
        await self._call(pb.SleepRequest(level=level, mode=_MODES[mode]))

    async def wake_up(self, *tags: str) -> None:
        """Allocate the memory again: that of the given tags, such as "weights", or by default all of it."""
        await self._call(pb.WakeUpRequest(tags=tags))

    async def is_sleeping(self) -> bool:
        """Return whether the engine sleeps."""
        reply: pb.IsSleepingResponse = await self._call(pb.IsSleepingRequest())
        return reply.sleeping

    async def init_weight_transfer(self, info: Mapping[str, Any]) -> None:
        """Set up the weight transfer. Needs `--weight-transfer-config`. `info` is in the format of vLLM's backend."""
        await self._call(pb.InitWeightTransferEngineRequest(init_info_json=json.dumps(dict(info)).encode()))

    async def start_weight_update(self) -> None:
        """Begin an update over vLLM's weight transfer. vLLM must be paused."""
        await self._call(pb.StartWeightUpdateRequest())

    async def update_weights(self, info: Mapping[str, Any]) -> None:
        """Let vLLM receive weights. `info` has their names, types and shapes, in the format of its backend."""
        await self._call(pb.UpdateWeightsRequest(update_info_json=json.dumps(dict(info)).encode()))

    async def load_lora(self, name: str, folder: str) -> None:
        """Load an adapter. Needs `--enable-lora`.

        Args:
            name: The name of the adapter in calls.
            folder: A folder on vLLM's machine.
        """
        await self._call(pb.LoadLoraRequest(lora_name=name, source_path=folder))

    async def unload_lora(self, name: str) -> None:
        """Unload an adapter."""
        await self._call(pb.UnloadLoraRequest(lora_name=name))

    async def loras(self) -> dict[str, str]:
        """Return the folders of the loaded adapters, by name."""
        reply: pb.ListLorasResponse = await self._call(pb.ListLorasRequest())
        return {adapter.lora_name: adapter.source_path for adapter in reply.adapters}

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
