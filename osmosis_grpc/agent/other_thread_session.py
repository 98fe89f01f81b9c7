"""A session for code on other threads and in other event loops, for example for sync tools and their sub-agents."""

from collections.abc import Callable
from typing import Any

from osmosis_grpc.agent.loop_calls import LoopCalls
from osmosis_grpc.agent.ports import Session


class OtherThreadSession:
    """Calls each method of a session on the event loop of the rollout, and waits for its result."""

    def __init__(self, session: Session, loop_calls: LoopCalls) -> None:
        self._session = session
        self._loop_calls = loop_calls
        self.calls = session.calls

    async def chat(self, *args: Any, **kwargs: Any) -> Any:
        """See Session.chat."""
        return await self._loop_calls.ask(lambda: self._session.chat(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session, name)
        if not callable(found):
            return found
        method: Callable[..., Any] = found
        return lambda *args, **kwargs: self._loop_calls.call(lambda: method(*args, **kwargs))
