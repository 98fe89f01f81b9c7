"""The routes of the Osmosis SDK's POST /rollout: 0.2.18 with two callbacks, and 0.3.3 with a polling lease."""

import contextlib
import secrets
from dataclasses import replace
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from osmosis_gateway.contracts import FIELDS, RolloutBody, read_rollout
from osmosis_gateway.http_bodies import Body, LaxFlag, LaxNumber, validated
from osmosis_gateway.routes import (
    HttpAccess,
    Rollouts,
    bearer_of,
    body_of,
    invalid,
    note_test_client,
    responses,
    rollouts_of,
    trace_of,
)
from osmosis_grpc.network.http.bounded_json import init_refusal, read_json
from osmosis_grpc.network.http.guard import bound_to_loopback
from osmosis_grpc.protocol.errors import AlreadyExists, CallError, InvalidArgument
from osmosis_grpc.protocol.types import InitRequest
from osmosis_grpc.protocol.types.requests import spec_digest

LEASE_HEADER = "X-Osmosis-Rollout-Lease"
PATH = "/rollout"
_BODY = (400, 401, 408, 413, 415, 421)
"""The error statuses of every route with a body."""
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Accepted, with the callbacks of 0.2.18.", "content": _OBJECT},
    202: {"description": "Accepted. Without callbacks, the answer has the lease.", "content": _OBJECT},
}


class CancelBody(Body):
    """Cancels rollouts. Exactly one of the three is given."""

    ids: list[str] | None = None
    prefix: str | None = None
    all: LaxFlag = False


class DrainBody(Body):
    """Accepts no more rollouts, and waits for those that run."""

    timeout_sec: LaxNumber = Field(default=30.0, ge=0, le=300)


def add_rollout_routes(app: FastAPI, access: HttpAccess) -> None:
    """Add the routes to an application with the routes of add_routes()."""
    guarded = bearer_of(access)

    @app.post(
        PATH,
        status_code=202,
        response_model=None,
        dependencies=guarded,
        responses=_ANSWERS | responses(*_BODY, 404, 409, 429, 500, 501, 503) | invalid(),
        openapi_extra=body_of(RolloutBody),
    )
    async def rollout(request: Request) -> JSONResponse:
        """Start a rollout. A repeated request with callbacks starts nothing. Without callbacks, its id must be new."""
        body, size = await read_json(request, access.bounds)
        lease = secrets.token_urlsafe(32)
        read = read_rollout(body, size, access.max_metadata_bytes, trace_of(request), lease)
        caller = {"authenticated": access.guarded, "loopback": bound_to_loopback(request.scope, access.loopback)}
        leases = rollouts_of(request).leases if read.contract.polled else None
        rollout_id = read.init.request.rollout_id
        try:
            with contextlib.nullcontext() if leases is None else leases.beginning(rollout_id):
                await _begin(rollouts_of(request), read.init, owner=_owner(request), **caller)
        except CallError as error:
            raise init_refusal(error, FIELDS) from None
        note_test_client(request)
        if leases is None:
            return JSONResponse({}, read.contract.status)
        answer = {
            "rollout_id": rollout_id,
            "status": "queued",
            "polling_lease_token": lease,
            "result_wait_timeout_sec": leases.times.wait,
            "polling_lease_timeout_sec": leases.times.lease,
        }
        return JSONResponse(answer, read.contract.status)

    @app.get(
        PATH + "/{rollout_id}/result",
        response_model=None,
        dependencies=guarded,
        responses=responses(401, 403, 404, 421, 501, 503) | invalid(),
    )
    async def result(
        request: Request, rollout_id: str, lease: Annotated[str, Header(alias=LEASE_HEADER, min_length=1)]
    ) -> dict[str, Any]:
        """Return the result of a rollout, or after 30 s its status. Each call renews the lease."""
        return await rollouts_of(request).leases.result(_owner(request), rollout_id, lease, request.is_disconnected)

    @app.get(
        PATH + "/{rollout_id}/status",
        response_model=None,
        dependencies=guarded,
        responses=responses(401, 421, 501, 503),
    )
    async def status(request: Request, rollout_id: str) -> dict[str, Any]:
        """Return the status of a rollout: queued, running, grading, success, failure, cancelled or unknown."""
        return await rollouts_of(request).leases.status(_owner(request), rollout_id)

    @app.post(
        PATH + "/cancel",
        response_model=None,
        dependencies=guarded,
        responses=responses(*_BODY, 501, 503) | invalid(),
        openapi_extra=body_of(CancelBody),
    )
    async def cancel(request: Request) -> dict[str, Any]:
        """Cancel rollouts. The disposition of an ended or unknown rollout is not_found."""
        given = validated(CancelBody, (await read_json(request, access.bounds))[0])
        if (given.ids is not None) + (given.prefix is not None) + given.all != 1:
            raise InvalidArgument("ids", "send exactly one of ids, prefix and all")
        return {"dispositions": await rollouts_of(request).cancel(_owner(request), given.ids, given.prefix)}

    @app.post(
        "/drain",
        response_model=None,
        dependencies=guarded,
        responses=responses(*_BODY, 403, 501, 503) | invalid(),
        openapi_extra=body_of(DrainBody),
    )
    async def drain(request: Request) -> dict[str, Any]:
        """Accept no more rollouts in this process, and wait for running ones, at most `timeout_sec` seconds."""
        access.check_admin(request.scope)
        given = validated(DrainBody, (await read_json(request, access.bounds))[0])
        return await rollouts_of(request).drain(_owner(request), given.timeout_sec)


async def _begin(rollouts: Rollouts, init: InitRequest, **caller: Any) -> None:
    """Start a rollout. If the agent has no grader, drop the grader's time limit, as 0.2.18 did."""
    try:
        await rollouts.init(init, **caller)
    except (InvalidArgument, AlreadyExists) as error:
        fields = error.fields if isinstance(error, AlreadyExists) else [path for path, _ in error.violations]
        if init.request.grader_timeout is None or [path.rpartition(".")[2] for path in fields] != ["grader_timeout"]:
            raise
        request = replace(init.request, grader_timeout=None)
        await rollouts.init(replace(init, request=request, digest=spec_digest(request)), **caller)


def _owner(request: Request) -> str:
    return getattr(request.state, "owner", "")
