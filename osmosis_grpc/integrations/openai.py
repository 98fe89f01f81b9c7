"""`@rollout_agent` turns a function that uses the openai package into an agent. Needs the extras `openai` and `server`.

    @rollout_agent("greeter")
    async def agent(task, client):
        reply = await client.chat.completions.create(model="policy", messages=task.messages)
        return 1.0 if "hello" in reply.choices[0].message.content else 0.0

The client sends its requests to the rollout's base URL, in this process and without a socket. Every request is a chat
of the rollout, and each conversation is a sample.
"""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.loop import RolloutAgentLoop
from osmosis_grpc.agent.run_outcome import RunOutcome, outcome_of_program
from osmosis_grpc.agent.sync_context import SyncRolloutContext, is_async, run_on_thread
from osmosis_grpc.protocol.errors import MissingExtraError, RolloutEndedError
from osmosis_grpc.protocol.types import Message

__all__ = ["Task", "rollout_agent"]

ADDRESS = "http://rollout.invalid"
"""The address in the client's base URL, where no server listens."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The rollout that a function works on."""

    messages: list[Message]
    """The conversation to start from."""
    prompt: str
    """The text of the last user message; empty if there is none."""
    label: str | None
    metadata: Mapping[str, Any]
    rollout_id: str
    attempt: int
    max_turns: int
    """The most turns. The server does not enforce it."""
    completion_params: Mapping[str, Any]
    """The trainer's sampling parameters, under OpenAI's names."""
    ctx: Any
    """The context of the rollout: RolloutContext for async functions, SyncRolloutContext for sync ones."""

    @classmethod
    def of(cls, context: RolloutContext | SyncRolloutContext) -> "Task":
        """Return the task of a rollout."""
        request = context.request
        messages = [dict(message) for message in request.messages]
        return cls(
            messages=messages,
            prompt=next((_text(message) for message in reversed(messages) if message.get("role") == "user"), ""),
            label=request.label,
            metadata=request.metadata,
            rollout_id=request.rollout_id,
            attempt=request.attempt,
            max_turns=request.max_turns,
            completion_params=request.completion_params,
            ctx=context,
        )


class FunctionAgent(RolloutAgentLoop, Generic[P, R]):
    """The agent that `@rollout_agent` returns. Calling it calls the function."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        self._clients = _Clients()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def run(self, ctx: RolloutContext) -> RunOutcome:
        """Call the function with the task and a client. A sync function runs on a thread."""
        function: Callable[..., Any] = self.function
        with self._clients.endpoints.open(ctx) as endpoint:

            def call(context: SyncRolloutContext) -> Any:
                with self._clients.made_sync(endpoint, context) as client:
                    return function(Task.of(context), client)

            try:
                if is_async(function):
                    async with self._clients.made(endpoint) as client:
                        result = await function(Task.of(ctx), client)
                else:
                    result = await run_on_thread(call, ctx)
            except self._clients.api_error:
                if endpoint.failure is not None:  # the function has only passed on the trainer's error
                    raise endpoint.failure from None
                raise
        return outcome_of_program(result, ctx)


def rollout_agent(
    name: str, *, tools: Sequence[Any] = (), replayable: bool = False
) -> Callable[[Callable[P, R]], FunctionAgent[P, R]]:
    """Turn a function `agent(task, client)`, sync or async, into an agent.

    `client` is an openai.AsyncOpenAI for an async function, and an openai.OpenAI for a sync one. The model's name is
    `policy`, or `policy/NAME` for the trainer's policy NAME. The function returns a reward, None, or a dict with the
    keys `reward`, `rewards`, `train`, `metadata` and `finish_reason`.

    Args:
        name: The name that trainers use.
        tools: The tools of requests that name none. `task.ctx.run_tools(message)` runs their calls.
        replayable: As in RolloutAgentLoop.

    Raises:
        MissingExtraError: The openai package is not installed.
        TypeError: The function cannot be called with a task and a client.
    """
    if not isinstance(name, str):
        raise TypeError('write the name of the agent: @rollout_agent("my-agent")')

    def made(function: Callable[P, R]) -> FunctionAgent[P, R]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__name__} yields; an agent returns its reward")
        try:
            inspect.signature(function).bind(None, None)
        except TypeError as error:
            raise TypeError(f"{function.__name__} is called as {function.__name__}(task, client): {error}") from None

        @functools.wraps(function)
        async def run(self: FunctionAgent[P, R], ctx: RolloutContext) -> RunOutcome:
            return await FunctionAgent.run(self, ctx)

        fields = {
            "name": name,
            "tools": tuple(tools),
            "replayable": replayable,
            "run": run,
            "__doc__": function.__doc__,
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
        }
        agent: FunctionAgent[P, R] = type(function.__name__, (FunctionAgent,), fields)(function)
        return agent

    return made


class _Clients:
    """Makes the clients of one agent's rollouts."""

    def __init__(self) -> None:
        try:
            self._openai: Any = importlib.import_module("openai")
            importlib.import_module("openai.resources.chat")  # takes a second, so don't leave it to the first rollout
        except ModuleNotFoundError as error:
            raise MissingExtraError("@rollout_agent", "openai") from error
        try:
            from osmosis_grpc.endpoints.app import base_url_app
            from osmosis_grpc.endpoints.endpoint_registry import Endpoints
        except ModuleNotFoundError as error:
            raise MissingExtraError("@rollout_agent", "server") from error
        self._http = _http_module(self._openai)
        self.api_error: type[Exception] = self._openai.APIError
        self.endpoints = Endpoints(lambda: ADDRESS)
        self._transport = self._http.ASGITransport(base_url_app(self.endpoints))

    def made(self, endpoint: Any) -> Any:
        """Return an openai.AsyncOpenAI for a rollout."""
        http = self._http.AsyncClient(transport=self._transport, trust_env=False)
        return self._openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, http_client=http)

    def made_sync(self, endpoint: Any, context: SyncRolloutContext) -> Any:
        """Return an openai.OpenAI for a rollout whose function runs on a thread."""
        http = self._http.Client(transport=_SyncTransport(self._http, self._transport, context), trust_env=False)
        return self._openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, http_client=http)


class _SyncTransport:
    """A transport of httpx that answers the requests of a thread on the event loop."""

    def __init__(self, http: Any, transport: Any, context: SyncRolloutContext) -> None:
        self._http = http
        self._transport = transport
        self._context = context

    def handle_request(self, request: Any) -> Any:
        """Return the response, which has the status 410 after the end of the rollout."""
        body = request.read()
        asked = self._http.Request(request.method, request.url, headers=request.headers, content=body)
        try:
            status, headers, content = self._context.wait(functools.partial(self._answer, asked))
        except RolloutEndedError as error:
            problem = {"error": {"message": str(error), "type": "server_error", "param": None, "code": "rollout_ended"}}
            return self._http.Response(410, headers={"x-should-retry": "false"}, json=problem)
        return self._http.Response(status, headers=headers, content=content)

    async def _answer(self, request: Any) -> tuple[int, Any, bytes]:
        response = await self._transport.handle_async_request(request)
        return response.status_code, response.headers, await response.aread()

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def __enter__(self) -> "_SyncTransport":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _http_module(openai: Any) -> Any:
    """Return the HTTP client module that this version of openai uses, httpx2 or httpx."""
    client = next(each for each in openai.DefaultAsyncHttpxClient.__mro__ if each.__name__ == "AsyncClient")
    return sys.modules[client.__module__.partition(".")[0]]


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""
