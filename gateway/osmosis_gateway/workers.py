"""Forwards HTTP requests between the workers of one server. Callers reach worker 0, and RULES routes each path.

Every other worker listens at a Unix socket for the requests of worker 0. Such a request has a secret that all workers
share, and the owner that worker 0 has authenticated.
"""

import asyncio
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote, unquote

import aiohttp
from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis_grpc.network.bearer_tokens import WRONG
from osmosis_grpc.network.http.bounded_json import Bounds, parse_body, read_body, refusal
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.server.workers.routing import Workers, possibly_started
from osmosis_grpc.server.workers.siblings import WorkerAway, WorkersConfig, patient
from osmosis_grpc.supervise import OnFailure, child, job

FORWARD = job("gateway.forward_to_worker", OnFailure.RAISE)
SECRET_HEADER, OWNER_HEADER = "x-osmosis-worker-secret", "x-osmosis-worker-owner"
TIMEOUT = 400.0
"""The time limit in seconds for the answer of another worker. A drain may take 300 s."""
KIND = "http"
"""The kind of the sockets. See WorkersConfig.socket()."""
_HOP = ("connection", "content-length", "host", "keep-alive", "transfer-encoding", SECRET_HEADER, OWNER_HEADER)
"""Headers that are not forwarded."""


class SiblingGuard:
    """ASGI middleware of a worker's socket. It refuses every caller except the workers of the same server."""

    def __init__(self, app: ASGIApp, *, secret: str) -> None:
        self.app = app
        self._secret = secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if not hmac.compare_digest(headers.get(SECRET_HEADER, "").encode(), self._secret):
                await JSONResponse({"detail": WRONG}, 401)(scope, receive, send)
                return
            scope.setdefault("state", {})["owner"] = unquote(headers.get(OWNER_HEADER, ""))
        await self.app(scope, receive, send)


class WorkerCalls:
    """Sends requests to the other workers. Use it as `async with WorkerCalls(config) as calls`."""

    def __init__(self, config: WorkersConfig) -> None:
        self._config = config
        self._sessions: dict[int, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> "WorkerCalls":
        return self

    async def __aexit__(self, *exc: object) -> None:
        for session in self._sessions.values():
            await session.close()

    async def send(self, worker: int, scope: Scope, body: bytes) -> Response:
        """Return the answer of a worker. Raises aiohttp.ClientError, OSError, TimeoutError."""
        headers = [(name, value) for name, value in Headers(scope=scope).items() if name not in _HOP]
        owner = scope.get("state", {}).get("owner") or ""
        headers += [(SECRET_HEADER, self._config.secret), (OWNER_HEADER, quote(owner))]
        path = scope.get("raw_path", scope["path"].encode()).decode() + "?" * bool(scope["query_string"])
        url = f"http://worker{path}{scope['query_string'].decode()}"
        session = self._session(worker)
        async with session.request(scope["method"], url, headers=headers, data=body or None) as answer:
            content = await answer.read()
        response = Response(content, answer.status)
        kept = MutableHeaders(response.headers)
        for name, value in answer.headers.items():
            if name.lower() not in (*_HOP, "date", "server"):
                kept[name] = value
        return response

    def _session(self, worker: int) -> aiohttp.ClientSession:
        known = self._sessions.get(worker)
        if known is None:
            known = self._sessions[worker] = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(self._config.socket(worker, KIND)), limit=0),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT),
                auto_decompress=False,
            )
        return known


class WorkerRoutes:
    """ASGI middleware of worker 0. It forwards a request to the workers that hold its rollouts."""

    def __init__(self, app: ASGIApp, *, routes: Workers, calls: WorkerCalls, bounds: Bounds) -> None:
        self.app = app
        self.routes = routes
        self._calls = calls
        self.bounds = bounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = None if scope["type"] != "http" else _rule(scope)
        if found is None:
            await self.app(scope, receive, send)
            return
        rule, name = found
        request = Request(scope, receive)
        try:
            body = b"" if scope["method"] == "GET" else await read_body(request, self.bounds)
            answer: Response | None = await _unless_gone(lambda: rule(self, scope, name, body), receive)
        except CallError as error:
            answer = await refusal(request, error)
        if answer is not None:
            await answer(scope, receive, send)

    async def at(self, worker: int, scope: Scope, body: bytes, *, wait: bool = False) -> Response:
        """Return the answer of a worker to a request. Raises WorkerAway naming a worker that restarts.

        With `wait`, wait for a worker that does not listen yet. That is safe, as it cannot have got the request.
        """
        if self.routes.is_local(worker):
            return await self._here(scope, body)

        async def send() -> Response:
            try:
                return await self._calls.send(worker, scope, body)
            except aiohttp.ClientConnectorError:
                raise self.routes.siblings.away(worker) from None

        try:
            return await (patient(send) if wait else send())
        except (aiohttp.ClientError, OSError, TimeoutError):
            raise self.routes.siblings.away(worker) from None

    async def each(self, scope: Scope, body: bytes) -> dict[int, Response]:
        """Return the answers of all workers that answer. This worker comes first."""
        answers = await asyncio.gather(
            *(self.at(worker, dict(scope), body) for worker in self.routes.all), return_exceptions=True
        )
        found = {}
        for worker, answer in zip(self.routes.all, answers, strict=True):
            if isinstance(answer, Response):
                found[worker] = answer
            elif not isinstance(answer, CallError) or self.routes.is_local(worker):
                raise answer
        return found

    async def _here(self, scope: Scope, body: bytes) -> Response:
        """Return the answer of this worker's own application."""
        status, headers, parts = 500, [], list[bytes]()
        sent = False
        gone = asyncio.Event()

        async def receive() -> Message:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()  # forever: _unless_gone() cancels this request when its caller disconnects
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], message.get("headers", [])
            else:
                parts.append(message.get("body", b""))

        await self.app(scope, receive, send)
        response = Response(b"".join(parts), status)
        response.raw_headers = list(headers)
        return response


async def _unless_gone(make: Callable[[], Awaitable[Response]], receive: Receive) -> Response | None:
    """Make an answer. If the caller disconnects first, cancel the work and return None."""
    working = child(FORWARD, _made(make))
    leaving = child(FORWARD, _disconnect(receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _made(make: Callable[[], Awaitable[Response]]) -> Response:
    return await make()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


Rule = Callable[[WorkerRoutes, Scope, str, bytes], Awaitable[Response]]


async def _place(routes: WorkerRoutes, scope: Scope, name: str, body: bytes) -> Response:
    """Start a rollout at its worker. This worker refuses a body that cannot be read.

    If the worker does not answer, raise DeadlineExceeded, as an Init over gRPC does.
    """
    try:
        given = parse_body(body)
    except CallError:
        given = None
    rollout_id = given.get("rollout_id") if isinstance(given, Mapping) else None
    if not isinstance(rollout_id, str):
        return await routes.at(routes.routes.siblings.config.index, scope, body)
    key = given.get("idempotency_key") if isinstance(given, Mapping) else None
    owner = scope.get("state", {}).get("owner") or ""
    try:
        worker = await routes.routes.placed(owner, rollout_id, key if isinstance(key, str) and key else rollout_id)
        return await routes.at(worker, scope, body, wait=True)
    except WorkerAway as error:
        raise possibly_started(error) from None


async def _at_its_worker(routes: WorkerRoutes, scope: Scope, name: str, body: bytes) -> Response:
    """Forward a request about one rollout to the worker that has the rollout."""
    owner = scope.get("state", {}).get("owner") or ""
    return await routes.at(await routes.routes.holder(owner, name), scope, body, wait=True)


def _merged(merge: Callable[[list[Any]], Any], *, complete: bool) -> Rule:
    """Return a rule that asks all workers, and merges their JSON answers with `merge`.

    With `complete`, all workers must answer.
    """

    async def rule(routes: WorkerRoutes, scope: Scope, name: str, body: bytes) -> Response:
        answers = await routes.each(scope, body)
        missing = [worker for worker in routes.routes.all if worker not in answers]
        if complete and missing:
            raise routes.routes.siblings.away(missing[0])
        for answer in answers.values():
            if answer.status_code != 200:
                return answer
        return JSONResponse(merge([json.loads(bytes(answer.body)) for answer in answers.values()]))

    return rule


def _dispositions(answers: list[Any]) -> Any:
    """Merge the answers to a cancel. A rollout is not_found if no worker has found it."""
    found: dict[str, str] = {}
    for answer in answers:
        for rollout_id, what in answer["dispositions"].items():
            if found.get(rollout_id, "not_found") == "not_found":
                found[rollout_id] = what
    return {"dispositions": found}


def _drained(answers: list[Any]) -> Any:
    return answers[0] | {
        "active_rollouts": sum(answer["active_rollouts"] for answer in answers),
        "drained": all(answer["drained"] for answer in answers),
        "rollout_ids": sorted({name for answer in answers for name in answer["rollout_ids"]}),
    }


def _health(answers: list[Any]) -> Any:
    """Merge the answers about health: add the numbers. The server is draining if all workers are."""
    first: dict[str, Any] = answers[0]
    accepting = any(answer["lifecycle"]["accepting_rollouts"] for answer in answers)
    sums = {
        name: sum(answer[name] for answer in answers)
        for name in ("active_rollouts", "completed_rollouts", "undelivered")
    }
    concurrency = {name: sum(answer["concurrency"][name] for answer in answers) for name in first["concurrency"]}
    return first | {
        **sums,
        "status": "healthy" if accepting else "draining",
        "concurrency": concurrency,
        "lifecycle": {"accepting_rollouts": accepting, "active_rollouts": sums["active_rollouts"]},
    }


async def _metrics(routes: WorkerRoutes, scope: Scope, name: str, body: bytes) -> Response:
    """Merge the metrics of all workers. Each has the label `worker`."""
    wanted = Headers(scope=scope).get("accept", "")
    headers = [(key, value) for key, value in scope["headers"] if key != b"accept"]
    answers = await routes.each({**scope, "headers": headers}, body)
    for answer in answers.values():
        if answer.status_code != 200:
            return answer
    pages = {worker: bytes(answer.body).decode() for worker, answer in answers.items()}
    away = [worker for worker in routes.routes.all if worker not in pages]
    from osmosis_grpc.observability.exposition import merged

    page, kind = await asyncio.to_thread(merged, pages, away, wanted)
    return Response(page, headers={"content-type": kind})


RULES: tuple[tuple[str, re.Pattern[str], Rule], ...] = (
    ("POST", re.compile("/v1/rollout/init|/rollout"), _place),
    ("GET", re.compile("/rollout/([^/]+)/(?:result|status)"), _at_its_worker),
    ("POST", re.compile("/rollout/cancel"), _merged(_dispositions, complete=True)),
    ("POST", re.compile("/drain"), _merged(_drained, complete=True)),
    ("GET", re.compile("/health|/platform/health"), _merged(_health, complete=False)),
    ("GET", re.compile("/metrics"), _metrics),
)
"""The rule for each method and path. Worker 0 answers other paths itself."""


def _rule(scope: Scope) -> tuple[Rule, str] | None:
    """Return the rule of a request, and the rollout id in its path."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    for method, pattern, rule in RULES:
        match = pattern.fullmatch(path)
        if match is not None and scope["method"] == method:
            return rule, next(iter(match.groups()), "")
    return None
