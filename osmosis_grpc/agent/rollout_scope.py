"""The members of a RolloutContext that the Osmosis SDK's 0.2.18 has: the active context, its address and its agents."""

import os
from contextvars import ContextVar, Token
from typing import Any, Self

current_rollout: ContextVar[Any] = ContextVar("osmosis_grpc_rollout", default=None)
"""The RolloutContext of the running code; None outside of a rollout."""

URL_VARIABLE = "OSMOSIS_CHAT_COMPLETIONS_URL"
KEY_VARIABLE = "OSMOSIS_API_KEY"
ID_VARIABLE = "OSMOSIS_ROLLOUT_ID"


class RolloutScope:
    """The base class of RolloutContext. A `with` block makes the context the active one of the block."""

    def __init__(self, *, rollout_id: str = "", chat_completions_url: str = "", api_key: str | None = None) -> None:
        self._given = rollout_id, chat_completions_url, api_key
        self._agents: dict[str, Any] = {}
        self._outer: list[Token[Any]] = []

    @property
    def rollout_id(self) -> str:
        """The rollout's id; without a rollout, the variable OSMOSIS_ROLLOUT_ID."""
        return self._given[0] or os.environ.get(ID_VARIABLE, "")

    @property
    def chat_completions_url(self) -> str:
        """The rollout's own base URL. A client of OpenAI adds /chat/completions.

        Without a rollout, it is the variable OSMOSIS_CHAT_COMPLETIONS_URL.
        """
        return self._given[1] or os.environ.get(URL_VARIABLE, "")

    @property
    def api_key(self) -> str:
        """The key for chat_completions_url. It is valid until the end of the rollout.

        Without a rollout, it is the variable OSMOSIS_API_KEY.
        """
        return self._given[2] or os.environ.get(KEY_VARIABLE, "")

    @property
    def registered_agents(self) -> dict[str, Any]:
        """The registered agents by the name of their sample."""
        return dict(self._agents)

    def separate(self) -> None:
        """Share no list of agents with the context of which this one is a copy."""
        self._agents, self._outer = dict(self._agents), []

    def __enter__(self) -> Self:
        self._outer.append(current_rollout.set(self))
        return self

    def __exit__(self, *exc: object) -> None:
        current_rollout.reset(self._outer.pop())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rollout_id={self.rollout_id!r}, agents={list(self._agents)})"
