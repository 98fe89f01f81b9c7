"""Calls sync policies on threads, and checks that policies are callable."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from osmosis_grpc.protocol.types import ChatRequest, ChatResponse
from osmosis_grpc.supervise import DaemonThreads


class ThreadedPolicy:
    """Calls a sync policy on its own threads, so that it does not block the event loop.

        Trainer(servers, ThreadedPolicy(policy, threads=16))

    Args:
        policy: The policy.
        threads: How many calls run at once. With 1, the policy needs no locks.
    """

    def __init__(
        self, policy: Callable[[ChatRequest], ChatResponse | Awaitable[ChatResponse]], *, threads: int = 1
    ) -> None:
        check_policy(policy)
        self._policy = policy
        self.cancel: Callable[[ChatRequest], object] | None = getattr(policy, "cancel", None)
        """The policy's `cancel` hook, see Policy; None if it has none."""
        self._threads = DaemonThreads(threads)
        self._users = 0

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        reply = await self._threads.run(lambda: self._policy(request))
        return reply if isinstance(reply, ChatResponse) or not inspect.isawaitable(reply) else await reply

    async def __aenter__(self) -> "ThreadedPolicy":
        self._users += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        if not self._users:
            self._threads.close()


def check_policy(policy: object) -> None:
    """Raise TypeError for a policy that is not callable."""
    if not callable(policy):
        raise TypeError(
            f"policy: {policy!r:.80} is not callable; pass a function from ChatRequest to ChatResponse, "
            "for example EchoPolicy()"
        )


def is_async(policy: Callable[..., Any]) -> bool:
    """Return whether a callable is an async function or has an async __call__."""
    return inspect.iscoroutinefunction(policy) or inspect.iscoroutinefunction(getattr(policy, "__call__", None))  # noqa: B004
