"""Pauses vLLM over plain HTTP, loads and names its weights, and puts it to sleep. Needs the extra `policies` (aiohttp).

vLLM has these calls only if it was started with the variable VLLM_SERVER_DEV_MODE=1, and guards them with no key. Keep
the port on a private network.
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
    """Controls one vLLM server. Used as `async with VllmHttpControl("http://127.0.0.1:8000") as vllm`.

    Every method raises CallError if the call fails.

    Args:
        base_url: The server, such as http://127.0.0.1:8000.
        api_key: The key of a proxy.
        timeout: The most seconds of each call.

    Raises:
        MissingExtraError: aiohttp is not installed.
        ValueError: The URL is wrong.
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
            mode: What becomes of open requests.
            clear_cache: Whether the cached prefixes are dropped, which new weights need. KEEP never drops them.
        """
        await self._post("/pause", mode=mode.value, clear_cache=str(clear_cache).lower())

    async def resume(self) -> None:
        """Continue the sampling."""
        await self._post("/resume")

    async def is_paused(self) -> bool:
        """Return whether the sampling is stopped."""
        return bool(await self._get("/is_paused", "is_paused"))

    async def weight_version(self) -> str:
        """Return the name of the weights; "default" if nobody has named them."""
        return str(await self._get("/weight_info", "weight_version"))

    async def set_weight_version(self, version: str) -> None:
        """Name the weights after loading them in a way that does not name them.

        Raises InvalidArgument for the name "default", which means that the weights have no name.
        """
        await self._post("/update_weight_version", {"new_version": checked_version(version)})

    async def load_weights(self, folder: str) -> None:
        """Load the weights in a folder of the machine of vLLM. Use it in `updating`, which names them.

        The folder has safetensors of the same model. The cached prefixes are those of the old weights until they are
        dropped, which a pause of mode ABORT or WAIT does.
        """
        await self.collective_rpc("reload_weights", weights_path=folder)

    async def collective_rpc(self, method: str, *args: str, **kwargs: str) -> list[Any]:
        """Call a method of every worker, and return what each returned.

        Args:
            method: The name of the method.
            *args: Its arguments by place.
            **kwargs: Its arguments by name.
        """
        body = {"method": method, "args": list(args), "kwargs": kwargs}
        return list(await self._post("/collective_rpc", body, key="results") or [])

    async def reset_prefix_cache(self) -> bool:
        """Drop the cached prefixes. Returns whether it was done, which open requests prevent."""
        return bool(await self._post("/reset_prefix_cache", key="success"))

    async def sleep(self, level: int = 1, mode: PauseMode = PauseMode.ABORT) -> None:
        """Pause, and free the memory of the accelerator, if vLLM has `--enable-sleep-mode`. Without it, only pause.

        Args:
            level: 1 moves the weights to the memory of the processor; 2 drops them, so load new ones after wake_up().
            mode: What becomes of open requests.
        """
        await self._post("/sleep", level=level, mode=mode.value)

    async def wake_up(self, *tags: str) -> None:
        """Take the memory again, for example only that of the tag "weights"; without a tag, all of it, and resume."""
        await self._post("/wake_up", tags=tags)

    async def is_sleeping(self) -> bool:
        """Return whether the engine sleeps."""
        return bool(await self._get("/is_sleeping", "is_sleeping"))

    async def init_weight_transfer(self, info: Mapping[str, Any]) -> None:
        """Begin the transfer of weights. Needs `--weight-transfer-config`. `info` is that of vLLM's backend."""
        await self._post("/init_weight_transfer_engine", {"init_info": dict(info)})

    async def start_weight_update(self) -> None:
        """Begin an update over vLLM's weight transfer. vLLM has to be paused."""
        await self._post("/start_weight_update")

    async def update_weights(self, info: Mapping[str, Any]) -> None:
        """Receive weights over vLLM's weight transfer. `info` is that of its backend: names, types and shapes."""
        await self._post("/update_weights", {"update_info": dict(info)})

    async def finish_weight_update(self, version: str) -> None:
        """End an update over vLLM's weight transfer, and name the new weights. vLLM has to be paused."""
        await self._post("/finish_weight_update", {"weight_version": checked_version(version)})

    async def load_lora(self, name: str, folder: str) -> None:
        """Load an adapter. Needs `--enable-lora` and the variable VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.

        Args:
            name: What calls name it with, as their model.
            folder: A folder of vLLM's machine.
        """
        await self._http.send("POST", "/v1/load_lora_adapter", body={"lora_name": name, "lora_path": folder})

    async def unload_lora(self, name: str) -> None:
        """Forget an adapter."""
        await self._http.send("POST", "/v1/unload_lora_adapter", body={"lora_name": name})

    async def _post(self, path: str, body: Mapping[str, Any] | None = None, *, key: str = "", **query: Any) -> Any:
        """Send a call. Returns the value of a key of its answer; None without a key."""
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
