"""The routes of the base URLs. Each API is a module with read(), write(), stream() and error()."""

from types import ModuleType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from osmosis_gateway.base_url import anthropic_messages, chat_completions, responses
from osmosis_gateway.base_url.endpoints import POLICY, Endpoint, Endpoints
from osmosis_gateway.bounded_json import Bounds, read_json
from osmosis_gateway.routes import gateway_app
from osmosis_grpc.errors import CallError, InvalidArgument, RolloutEndedError
from osmosis_grpc.link.bearer_tokens import bearer

PREFIX = "/v1/rollouts/{rollout_id}"
APIS: dict[str, ModuleType] = {
    "/chat/completions": chat_completions,
    "/responses": responses,
    "/messages": anthropic_messages,
    "/v1/messages": anthropic_messages,
}
"""The API of each path."""
SAMPLE_HEADER = "x-osmosis-sample"
"""Names the sample of a request. Without it, the history decides."""


def base_url_app(endpoints: Endpoints) -> FastAPI:
    """Return the application that serves the base URLs of all endpoints."""
    app = gateway_app("osmosis_grpc, the model of a rollout", openapi_url=None)
    for path, api in APIS.items():
        app.add_api_route(PREFIX + path, _route(endpoints, api), methods=["POST"], response_model=None)

    @app.get(f"{PREFIX}/models")
    async def models(request: Request, rollout_id: str) -> Response:
        """The only model: the policy of the trainer."""
        try:
            _endpoint(endpoints, request, rollout_id)
        except (CallError, RolloutEndedError) as error:
            return _refused(chat_completions, error)
        model = {"id": POLICY, "object": "model", "created": 0, "owned_by": "trainer"}
        return JSONResponse({"object": "list", "data": [model], "has_more": False})

    return app


def _route(endpoints: Endpoints, api: ModuleType) -> Any:
    bounds = Bounds()

    async def answer(request: Request, rollout_id: str) -> Response:
        try:
            endpoint = _endpoint(endpoints, request, rollout_id)
            asked = api.read((await read_json(request, bounds))[0])
            try:
                sample = request.headers.get(SAMPLE_HEADER, "")
                result = await endpoint.ask(asked, sample=sample, gone=request.is_disconnected)
            except ValueError as error:
                raise InvalidArgument("", str(error)) from None
        except (CallError, RolloutEndedError) as error:
            return _refused(api, error)
        if asked.stream:
            return StreamingResponse(api.stream(asked, result), media_type="text/event-stream")
        return JSONResponse(api.write(asked, result))

    return answer


def _endpoint(endpoints: Endpoints, request: Request, rollout_id: str) -> Endpoint:
    """Return the endpoint that a request's key opens. Raises CallError, RolloutEndedError."""
    key = request.headers.get("x-api-key") or bearer(request.headers.get("authorization", ""))
    return endpoints.find(rollout_id, key)


def _refused(api: ModuleType, error: CallError | RolloutEndedError) -> Response:
    """Return the response to a failed request. The engine has retried already, so the client does not."""
    status = error.status_code if isinstance(error, CallError) else 410
    code = (error.reason or type(error).__name__).lower() if isinstance(error, CallError) else "rollout_ended"
    return JSONResponse(api.error(status, str(error), code), status, {"x-should-retry": "false"})
