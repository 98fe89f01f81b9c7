"""The members of a RolloutContext that the Osmosis SDK's 0.2.18 has: the active context, its address and its agents."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Self

from osmosis_grpc.agent.model_client import NoSession
from osmosis_grpc.protocol.errors import FailedPrecondition, MissingExtraError, RolloutEndedError

if TYPE_CHECKING:
    from osmosis_grpc.agent.grader import RolloutSample

current_rollout: ContextVar[Any] = ContextVar("osmosis_grpc_rollout", default=None)
"""The RolloutContext of the running code; None outside of a rollout."""

URL_VARIABLE = "OSMOSIS_CHAT_COMPLETIONS_URL"
KEY_VARIABLE = "OSMOSIS_API_KEY"
ID_VARIABLE = "OSMOSIS_ROLLOUT_ID"

AGENT_REGISTERED = "agent registered"
"""The event that records the format of an agent's messages."""

Opener = Callable[["RolloutScope", asyncio.AbstractEventLoop], AbstractContextManager[Any]]
"""Serves the base URL of a rollout on the loop while the context is open, and returns its endpoint."""
_openers: list[Opener] = []


def provide_base_urls(opener: Opener) -> None:
    """Let `opener` serve the base URLs of all rollouts of this process.

    Rollout hosts import osmosis_grpc.endpoints, which calls this. So this package does not depend on HTTP.
    """
    _openers[:] = [opener]


class BaseUrls:
    """The base URLs of one rollout. A `with` block ends them. Made on the event loop of the rollout."""

    __slots__ = ("_ended", "_loop", "_open")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: list[AbstractContextManager[Any]] = []
        """The open addresses. An ExitStack in each rollout would take ten times the memory."""
        self._ended = False

    def open(self, context: "RolloutScope") -> tuple[str, str]:
        """Serve the base URL of a context; return the URL and its key.

        Raises MissingExtraError without the extra `server`, and RolloutEndedError after the end.
        """
        if self._ended:
            raise RolloutEndedError("the rollout has ended")
        if not _openers:
            raise FailedPrecondition("this process serves no base URLs: import osmosis_grpc.endpoints")
        try:
            address = _openers[0](context, self._loop)
        except ModuleNotFoundError as error:
            raise MissingExtraError("the base URL of a rollout", "server") from error
        endpoint = address.__enter__()
        self._open.append(address)
        # Without the endpoint itself, which refers to the context: nothing collects such a circle in a server.
        return endpoint.base_url, endpoint.api_key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended = True
        with ExitStack() as all_of_them:
            for address in self._open:
                all_of_them.push(address)


class RolloutScope:
    """The base class of RolloutContext. A `with` block makes the context the active one of the block."""

    def __init__(self, *, rollout_id: str = "", chat_completions_url: str = "", api_key: str | None = None) -> None:
        self._given = rollout_id, chat_completions_url, api_key
        self._agents: dict[str, Any] = {}
        self._source: Any = None
        self._outer: list[Token[Any]] = []
        self._base_urls: BaseUrls | None = None
        self._address: tuple[str, str] | None = None
        """The base URL and its key, once it is open."""

    @property
    def rollout_id(self) -> str:
        """The rollout's id; without a rollout, the variable OSMOSIS_ROLLOUT_ID."""
        return self._given[0] or os.environ.get(ID_VARIABLE, "")

    @property
    def chat_completions_url(self) -> str:
        """The rollout's own base URL. A client of OpenAI adds /chat/completions.

        Its first use opens the URL; the URL ends with the rollout. Without a rollout, it is the variable
        OSMOSIS_CHAT_COMPLETIONS_URL. Raises MissingExtraError without the extra `server`, and RolloutEndedError.
        """
        if not self._given[1] and self._base_urls is not None:
            return self._opened()[0]
        return self._given[1] or os.environ.get(URL_VARIABLE, "")

    @property
    def api_key(self) -> str:
        """The key for chat_completions_url. It is valid until the end of the rollout.

        Without a rollout, it is the variable OSMOSIS_API_KEY.
        """
        if not self._given[2] and self._base_urls is not None:
            return self._opened()[1]
        return self._given[2] or os.environ.get(KEY_VARIABLE, "")

    @property
    def registered_agents(self) -> dict[str, Any]:
        """The registered agents by the name of their sample."""
        return dict(self._agents)

    def register_agent(self: Any, sample_id: str, agent: Any) -> None:
        """Begin the sample of an agent, for example of OsmosisStrandsAgent. get_samples() then has its messages.

        Args:
            sample_id: The name of the sample.
            agent: Has the messages in its method `rollout_messages()`, or in its attribute `messages`. Its attribute
                `message_format` names their format, for the grading of the recorded rollout (see recorded_samples()).

        Raises:
            ValueError: The name is in use or cannot be used.
        """
        if not isinstance(sample_id, str):
            raise ValueError(f"sample: is a {type(sample_id).__name__}, not a str")
        if sample_id in self._agents:
            raise ValueError(f"the rollout already has an agent named {sample_id!r}; give each agent a name of its own")
        if not isinstance(self._session, NoSession):
            self.add_sample(sample_id)
            if hasattr(agent, "message_format"):
                self.log_event(AGENT_REGISTERED, agent=sample_id, format=agent.message_format)
        self._agents[sample_id] = agent

    @property
    def sample_source(self) -> Any:
        """The source of the grader's messages; None if the workflow has set none."""
        return self._source

    def set_sample_source(self, source: Any) -> None:
        """Let the grader get the messages of the rollout's only sample from a source of the author's.

        Args:
            source: A SampleSource, whose get_sample() is awaited when the workflow has ended.

        Raises:
            ValueError: There is a source already.
        """
        if self._source is not None:
            raise ValueError("the rollout already has a source of its sample; make one agent or session in a rollout")
        self._source = source

    def get_samples(self: Any) -> "dict[str, RolloutSample]":
        """Return the samples that have a reply of the policy, and those of registered agents, in their order.

        The messages of a registered agent are in the format of its library. Other messages are in OpenAI's format.
        """
        from osmosis_grpc.agent.grader import RolloutSample

        found: dict[str, Any] = {}
        for name in () if isinstance(self._session, NoSession) else self._session.sample_names():
            if name in self._agents or self._session.sample_messages(name) is not None:
                found[name] = self._session.sample_messages(name)
        for name, agent in self._agents.items():
            whole = getattr(type(agent), "rollout_messages", None)  # of the class, because a mock has every attribute
            found[name] = whole(agent) if callable(whole) else agent.messages
        return {name: RolloutSample(id=name, messages=list(messages)) for name, messages in found.items()}

    def separate(self) -> None:
        """Detach a copied context from the agents and the base URL of its original."""
        self._agents, self._outer, self._address = dict(self._agents), [], None

    def belong(self, base_urls: "BaseUrls") -> None:
        """Bind the context to a running rollout with these base URLs."""
        self._base_urls = base_urls

    def _opened(self) -> tuple[str, str]:
        assert self._base_urls is not None
        if self._address is None:
            self._address = self._base_urls.open(self)
        return self._address

    def __enter__(self) -> Self:
        self._outer.append(current_rollout.set(self))
        return self

    def __exit__(self, *exc: object) -> None:
        current_rollout.reset(self._outer.pop())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rollout_id={self.rollout_id!r}, agents={list(self._agents)})"
