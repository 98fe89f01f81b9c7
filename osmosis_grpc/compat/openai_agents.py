"""The Osmosis SDK's names for the OpenAI Agents library. Needs the extras `openai-agents` and `server`.

    class Workflow(AgentWorkflow):
        async def run(self, ctx):
            agent = OsmosisAgent(name="solver", model=OsmosisRolloutModel(), tools=[multiply])
            await Runner.run(agent, ctx.prompt, session=OsmosisMemorySession())

The agent asks the rollout's base URL, so its requests are chats of the rollout. The grader gets the items of the
session or, without a session, the recorded messages in OpenAI's format.
"""

from typing import Any, NoReturn

from osmosis_grpc.agent.context import get_rollout_context
from osmosis_grpc.agent.grader import RolloutSample
from osmosis_grpc.agent.workflow_output import SampleSource
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.supervise import SYSTEM

try:
    from agents import Agent
    from agents.memory.session import SessionABC
    from agents.models.interface import Model
    from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
    from openai import AsyncOpenAI
except ImportError as error:
    raise MissingExtraError("OsmosisAgent", "openai-agents") from error

__all__ = ["OsmosisAgent", "OsmosisLitellmModel", "OsmosisMemorySession", "OsmosisRolloutModel", "SessionSampleSource"]

POLICY = "policy"
"""The model name to send to the base URL. It means the trainer's only policy."""


class OsmosisRolloutModel(Model):
    """A placeholder for the policy. OsmosisAgent replaces it with an OsmosisLitellmModel.

    Args:
        **litellm_kwargs: Must be empty when the agent is made. Set sampling parameters in ModelSettings.
    """

    def __init__(self, **litellm_kwargs: Any) -> None:
        self.litellm_kwargs = litellm_kwargs

    def _unusable(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("OsmosisRolloutModel is a placeholder: make the agent with OsmosisAgent")

    get_response: Any = _unusable
    stream_response: Any = _unusable


class OsmosisLitellmModel(OpenAIChatCompletionsModel):
    """The policy of the active rollout.

    Raises:
        RuntimeError: No rollout is active.
        TypeError: A parameter of LiteLLM was given.
    """

    def __init__(self, **litellm_kwargs: Any) -> None:
        if litellm_kwargs:
            name = next(iter(litellm_kwargs))
            raise TypeError(f"{name}: is a parameter of LiteLLM, which is not used; pass ModelSettings to the agent")
        context = get_rollout_context()
        if context is None:
            raise RuntimeError("OsmosisLitellmModel needs an active rollout: make it in the run() of a workflow")
        headers = {"connection": "close"}  # nobody closes the client, so no connection may outlive its request
        key = context.api_key or "no-key"
        client = AsyncOpenAI(base_url=context.chat_completions_url, api_key=key, default_headers=headers)
        super().__init__(POLICY, client)


class OsmosisAgent(Agent):
    """An Agent. If its model is an OsmosisRolloutModel, it asks the policy of the active rollout."""

    def __init__(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        if isinstance(model, OsmosisRolloutModel):
            model = OsmosisLitellmModel(**model.litellm_kwargs)
        super().__init__(*args, **{**kwargs, "model": model})


class OsmosisMemorySession(SessionABC):
    """A session in memory. In a rollout, the grader gets its items as the messages of the only sample."""

    def __init__(self) -> None:
        self.session_id = SYSTEM.new_id()
        self.items: list[Any] = []
        self._context = get_rollout_context()
        if self._context is not None:
            self._context.set_sample_source(SessionSampleSource(self))

    def _check(self) -> None:
        active = get_rollout_context()
        if active is not None and active is not self._context:
            raise RuntimeError("the session belongs to another rollout, or to none: make it in the run() that uses it")

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return all items, or the newest `limit` ones."""
        self._check()
        return list(self.items if limit is None else self.items[len(self.items) - min(limit, len(self.items)) :])

    async def add_items(self, items: list[Any]) -> None:
        """Add items."""
        self._check()
        self.items.extend(items)

    async def pop_item(self) -> Any:
        """Remove and return the newest item; None if there is none."""
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        """Remove all items."""
        self.items.clear()


class SessionSampleSource(SampleSource):
    """Makes a sample from the items of any session of the OpenAI Agents library.

    Args:
        session: The session.
    """

    def __init__(self, session: Any) -> None:
        self.session = session

    async def get_sample(self) -> RolloutSample:
        """Return the items as messages."""
        items = await self.session.get_items()
        return RolloutSample(messages=[dict(item) for item in items])
