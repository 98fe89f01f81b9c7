"""Error texts for imports of names of the Osmosis SDK and the Agentic Rollout Library that are missing here.

Each text is one sentence. It says where the name is, or what to use until osmosis_grpc has the name.
"""

from osmosis_grpc.errors import missing_extra

_LOOP = "write the agent as a RolloutAgentLoop of osmosis_grpc.rollout"
_REWARD = "compute the reward in the agent and pass it to ctx.complete(messages, reward=...)"
_CHAT = "call the model with await ctx.chat(messages) in a RolloutAgentLoop of osmosis_grpc.rollout"

_NOT_YET: dict[str, tuple[str, ...]] = {
    _LOOP: (
        "AgentWorkflow",
        "AgentWorkflowConfig",
        "AgentWorkflowContext",
        "BaseConfig",
        "ConcurrencyConfig",
        "AgenticRollout",
        "AgenticRolloutConfig",
        "BaseAgent",
        "BaseAgenticTool",
        "Trajectory",
        "TrajectoryStep",
        "StepType",
    ),
    _REWARD: ("Grader", "GraderConfig", "GraderContext", "RolloutSample", "osmosis_rubric", "evaluate_rubric"),
    _CHAT: ("OsmosisStrandsAgent", "OsmosisRolloutModel"),
}
"""What to use today, to the names that osmosis_grpc does not have yet."""

_MODULES = {
    "workers": "there is no module 'workers'; if it is the one of the Agentic Rollout Library, osmosis_grpc does not "
    f"have it yet: {_LOOP}",
    "verl.workers.rollout.agentic_rollout": "verl has no module verl.workers.rollout.agentic_rollout, and osmosis_grpc "
    f"does not have it yet: {_LOOP}",
}

_EXTRAS = {"openai": "openai", "litellm": "litellm", "mcp": "mcp", "pyarrow": "parquet"}
"""The extra of osmosis-grpc that has a module."""

_SDK = "osmosis_ai"
_PREFIX = "change the prefix 'osmosis_ai' to 'osmosis_grpc' in its imports"


def missing_name(name: str) -> str | None:
    """Return the sentence for a name that osmosis_grpc does not have yet; None for any other name."""
    instead = next((instead for instead, names in _NOT_YET.items() if name in names), None)
    return f"{name} is not in osmosis_grpc yet: {instead}" if instead else None


def missing_module(name: str) -> str | None:
    """Return the sentence for a missing module; None if Python's own text is enough."""
    if name.partition(".")[0] == _SDK:
        return f"there is no module {name!r}: {_PREFIX}"
    for module, sentence in _MODULES.items():
        if f"{name}.".startswith(f"{module}."):
            return sentence
    extra = _EXTRAS.get(name.partition(".")[0])
    if extra:
        return missing_extra(f"the module {name!r} is missing: the agent", extra)
    if name.startswith("osmosis_grpc."):
        return f"there is no module {name!r}: the names for agents are in osmosis_grpc.rollout"
    return None


def of_the_sdk(cls: type) -> str | None:
    """Return the sentence for a subclass of one of the Osmosis SDK's classes; None for any other class."""
    base = next((base for base in cls.__mro__ if base.__module__.partition(".")[0] == _SDK), None)
    return f"{cls.__name__} derives from {base.__module__}.{base.__name__}: {_PREFIX}" if base else None
