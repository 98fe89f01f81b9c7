"""Samples tokens from vLLM over plain HTTP, `vllm serve --enable-scale-out`. Needs the extra `policies` (aiohttp).

    policy = TokenPolicy(renderer, VllmHttpGenerator("http://127.0.0.1:8000"))

Both frontends of vLLM have this API: the one in Python and the one in Rust.
"""

import asyncio
from typing import Any, Self

from osmosis_grpc.integrations.vllm_http.messages import PATH, from_body, to_body
from osmosis_grpc.policies.generation import Generated, GenerateRequest, WeightNames
from osmosis_grpc.policies.model_http import BAD_BODY, ModelHttp, checked_url
from osmosis_grpc.protocol.errors import Cancelled
from osmosis_grpc.protocol.types import jsontext

SHORT = 10.0
"""The timeout of calls that do not sample, in seconds."""
MISSING = f"check base_url and model; vLLM has {PATH} only with --enable-scale-out"


def open_http(
    name: str, base_url: str, api_key: str | None, timeout: float, connections: int, missing: str
) -> ModelHttp:
    """Return the connections to a vLLM server. The base URL may end with /v1, as for OpenAI's API."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    url = checked_url(base_url).removesuffix("/v1")
    return ModelHttp(name, url, headers, key=api_key, timeout=timeout, connections=connections, missing=missing)


class VllmHttpGenerator:
    """A TokenGenerator for vLLM. TokenPolicy closes its connections; without one, use `async with`.

    Results have the exact weight version of each token, even if the weights change while a reply is sampled. If the
    weights have no name, results have no version. If the weights have lost their name, the server was restarted, and
    the call raises Unavailable.

    To abort a call, the generator closes the HTTP request of the call, and vLLM stops sampling.

    Args:
        base_url: The server, such as http://127.0.0.1:8000.
        model: A name under which vLLM serves the model, or the name of a loaded adapter; empty for the only model.
        api_key: The key of `vllm serve --api-key`, or of a proxy.
        timeout: How many seconds a call may take. A shorter timeout of the request takes precedence.
        connections: The most connections at once.

    Raises:
        MissingExtraError: aiohttp is not installed.
        ValueError: The URL is malformed.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str = "",
        api_key: str | None = None,
        timeout: float = 600.0,
        connections: int = 1024,
    ) -> None:
        self._http = open_http("VllmHttpGenerator", base_url, api_key, timeout, connections, MISSING)
        self._model = model
        self._weights = WeightNames(checked_url(base_url))
        self._open: dict[str, asyncio.Timeout] = {}

    async def __aenter__(self) -> Self:
        self._http.enter()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.exit()

    async def generate(self, request: GenerateRequest, /) -> Generated:
        """Return the sampled tokens, see TokenGenerator. Raises InvalidArgument for media."""
        body = to_body(request, self._model)
        try:
            async with asyncio.timeout(None) as aborted:
                self._open[request.request_id] = aborted
                raw = await self._http.send(
                    "POST", PATH, body=body, session_id=request.session_id, timeout=request.timeout
                )
        except TimeoutError:
            if not aborted.expired():
                raise
            raise Cancelled("the reply to the call is no longer wanted") from None
        finally:
            self._open.pop(request.request_id, None)
        return self._read(request, raw)

    async def abort(self, request_id: str, /) -> None:
        """Close the HTTP request of a call. Its generate() then raises Cancelled."""
        call = self._open.pop(request_id, None)
        if call is not None:
            call.reschedule(0.0)  # a deadline in the past ends the wait at once

    async def context_length(self) -> int:
        """Return the most tokens of a prompt and its reply together; 0 if the server does not report it."""
        raw = await self._http.send("GET", "/v1/models", timeout=SHORT)
        try:
            models: list[Any] = jsontext.parse_reply(raw, "body")["data"]
            found = next((model for model in models if model["id"] == self._model), models[0])
            return int(found.get("max_model_len") or 0)
        except BAD_BODY as error:
            raise self._http.unreadable(error) from None

    def _read(self, request: GenerateRequest, raw: bytes) -> Generated:
        try:
            return from_body(request, jsontext.parse_reply(raw, "body"), self._weights)
        except BAD_BODY as error:
            raise self._http.unreadable(error) from None
