"""Names of the Osmosis SDK and the Agentic Rollout Library that an import does not find, and what to do about each.

Agents that people already have import these names. The error says in one sentence where the name is, or that it is
not there yet and what to use today.
"""

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
"""What to use today, and the names that are not built yet."""

_MODULES = {
    "workers": "there is no module 'workers'; if it is the one of the Agentic Rollout Library, osmosis_grpc does not "
    f"have it yet: {_LOOP}",
    "verl.workers.rollout.agentic_rollout": "verl has no module verl.workers.rollout.agentic_rollout, and osmosis_grpc "
    f"does not have it yet: {_LOOP}",
}
"""Modules that are not there, and the sentence for each."""

_SDK = "osmosis_ai"
_PREFIX = "change the prefix 'osmosis_ai' to 'osmosis_grpc' in its imports"


def missing_name(name: str) -> str | None:
    """Returns the sentence for a name that is not built yet; None for any other name."""
    instead = next((instead for instead, names in _NOT_YET.items() if name in names), None)
    return f"{name} is not in osmosis_grpc yet: {instead}" if instead else None


def missing_module(name: str) -> str | None:
    """Returns the sentence for a module that cannot be found; None when only Python's own text applies."""
    if name.partition(".")[0] == _SDK:
        return f"there is no module {name!r}: {_PREFIX}"
    for module, sentence in _MODULES.items():
        if f"{name}.".startswith(f"{module}."):
            return sentence
    if name.startswith("osmosis_grpc."):
        return f"there is no module {name!r}: the names for agents are in osmosis_grpc.rollout"
    return None


def of_the_sdk(cls: type) -> str | None:
    """Returns the sentence for a class that derives from the Osmosis SDK's own classes; None for any other class."""
    base = next((base for base in cls.__mro__ if base.__module__.partition(".")[0] == _SDK), None)
    return f"{cls.__name__} derives from {base.__module__}.{base.__name__}: {_PREFIX}" if base else None
