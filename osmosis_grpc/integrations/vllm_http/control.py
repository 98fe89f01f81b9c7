"""Pauses vLLM over plain HTTP, loads and names its weights, and puts it to sleep. Needs the extra `policies` (aiohttp).

Start vLLM with the variable VLLM_SERVER_DEV_MODE=1, or it does not offer these calls. It does not protect them with a
key, so keep the port on a private network.
"""

from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlencode

from osmosis_grpc.integrations._vllm_weights import PauseMode, WeightControl, checked_version
from osmosis_grpc.integrations.vllm_http.generator import open_http
from osmosis_grpc.policies.model_http import BAD_BODY
from osmosis_grpc.protocol.types import jsontext

MISSING = "check base_url; vLLM has this call only with the variable VLLM_SERVER_DEV_MODE=1"
CONNECTIONS = 16


class VllmHttpControl(WeightControl):
    """Controls one vLLM server. Use it as `async with VllmHttpControl("http://127.0.0.1:8000") as vllm`.

    Every method raises CallError if the call fails.

    Args:
        base_url: The server, such as http://127.0.0.1:8000.
        api_key: The key of a proxy in front of vLLM.
        timeout: How many seconds each call may take.

    Raises:
        MissingExtraError: aiohttp is not installed.
        ValueError: The URL is malformed.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, timeout: float = 600.0) -> None:
        self._http = open_http("VllmHttpControl", base_url, api_key, timeout, CONNECTIONS, MISSING)

    async def __aenter__(self) -> Self:
        self._http.enter()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.exit()

    async def pause(self, mode: PauseMode = PauseMode.ABORT, *, clear_cache: bool = True) -> None:
        """Stop the sampling.

        Args:
            mode: What to do with open requests.
            clear_cache: Whether to drop the cached prefixes, as new weights require. The mode KEEP never drops them.
        """
        await self._post("/pause", mode=mode.value, clear_cache=str(clear_cache).lower())

    async def resume(self) -> None:
        """Continue the sampling."""
        await self._post("/resume")

    async def is_paused(self) -> bool:
        """Return whether the sampling is stopped."""
        return bool(await self._get("/is_paused", "is_paused"))

    async def weight_version(self) -> str:
        """Return the name of the weights, or "default" if they have none."""
        return str(await self._get("/weight_info", "weight_version"))

    async def set_weight_version(self, version: str) -> None:
        """Name the weights. Only needed if they were loaded in a way that does not name them.

        Raises InvalidArgument for the name "default", which vLLM uses for weights without a name.
        """
        await self._post("/update_weight_version", {"new_version": checked_version(version)})

    async def load_weights(self, folder: str) -> None:
        """Load weights from a folder on vLLM's machine. Call this within `updating`, which names the weights.

        The folder must contain safetensors of the same model. Cached prefixes still come from the old weights until a
        pause with the mode ABORT or WAIT drops them.
        """
        await self.collective_rpc("reload_weights", weights_path=folder)

    async def collective_rpc(self, method: str, *args: str, **kwargs: str) -> list[Any]:
        """Call a method on every worker of vLLM, and return the results, one for each worker.

        Args:
            method: The name of the method.
            *args: The method's positional arguments.
            **kwargs: The method's keyword arguments.
        """
        body = {"method": method, "args": list(args), "kwargs": kwargs}
        return list(await self._post("/collective_rpc", body, key="results") or [])

    async def reset_prefix_cache(self) -> bool:
        """Drop the cached prefixes. Return False if open requests prevent it."""
        return bool(await self._post("/reset_prefix_cache", key="success"))

    async def sleep(self, level: int = 1, mode: PauseMode = PauseMode.ABORT) -> None:
        """Pause, and free the GPU's memory if vLLM runs with `--enable-sleep-mode`.

        Args:
            level: 1 moves the weights to the CPU's memory; 2 drops them, so load new ones after wake_up().
            mode: What to do with open requests.
        """
        await self._post("/sleep", level=level, mode=mode.value)

    async def wake_up(self, *tags: str) -> None:
        """Allocate the memory of the given tags, such as "weights", or by default of all, and resume."""
        await self._post("/wake_up", tags=tags)

    async def is_sleeping(self) -> bool:
        """Return whether the engine sleeps."""
        return bool(await self._get("/is_sleeping", "is_sleeping"))

    async def init_weight_transfer(self, info: Mapping[str, Any]) -> None:
        """Set up the weight transfer, which needs `--weight-transfer-config`. vLLM's backend defines `info`."""
        await self._post("/init_weight_transfer_engine", {"init_info": dict(info)})

    async def start_weight_update(self) -> None:
        """Begin an update over vLLM's weight transfer. vLLM must be paused."""
        await self._post("/start_weight_update")

    async def update_weights(self, info: Mapping[str, Any]) -> None:
        """Let vLLM receive weights. `info` has their names, types and shapes, in the format of vLLM's backend."""
        await self._post("/update_weights", {"update_info": dict(info)})

    async def finish_weight_update(self, version: str) -> None:
        """End an update over vLLM's weight transfer, and name the new weights. vLLM must be paused."""
        await self._post("/finish_weight_update", {"weight_version": checked_version(version)})

    async def load_lora(self, name: str, folder: str) -> None:
        """Load an adapter. Needs `--enable-lora` and the variable VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.

        Args:
            name: The name of the adapter, which calls pass as the model.
            folder: A folder on vLLM's machine.
        """
        await self._http.send("POST", "/v1/load_lora_adapter", body={"lora_name": name, "lora_path": folder})

    async def unload_lora(self, name: str) -> None:
        """Unload an adapter."""
        await self._http.send("POST", "/v1/unload_lora_adapter", body={"lora_name": name})

    async def _post(self, path: str, body: Mapping[str, Any] | None = None, *, key: str = "", **query: Any) -> Any:
        """Send a call. Return the value of `key` in its answer, or None if `key` is empty."""
        given = urlencode(query, doseq=True)
        raw = await self._http.send("POST", f"{path}?{given}" if given else path, body=body)
        return self._value(raw, key) if key else None

    async def _get(self, path: str, key: str) -> Any:
        return self._value(await self._http.send("GET", path), key)

    def _value(self, raw: bytes, key: str) -> Any:
        try:
            return jsontext.parse(raw.decode(), "body")[key] if raw else None
        except BAD_BODY as error:
            raise self._http.unreadable(error) from None
