"""Error texts for imports of names of the Osmosis SDK and the Agentic Rollout Library that are missing here.

Each text is one sentence. It says where the name is, or what to use until osmosis_grpc has the name.
"""

from osmosis_grpc.errors import missing_extra

_LOOP = "write the agent as a RolloutAgentLoop of osmosis_grpc.rollout"
_REWARD = "compute the reward in the agent and pass it to ctx.complete(messages, reward=...)"
_SERVE = "serve the workflow with osmosis-grpc serve -m entrypoint.py, or run it with osmosis_grpc.testing.run_rollout"

_NOT_YET: dict[str, tuple[str, ...]] = {
    _LOOP: (
        "AgenticRollout",
        "AgenticRolloutConfig",
        "BaseAgent",
        "BaseAgenticTool",
        "Trajectory",
        "TrajectoryStep",
        "StepType",
    ),
    _REWARD: (
        "osmosis_rubric",
        "evaluate_rubric",
        "RubricResult",
        "MissingAPIKeyError",
        "ModelNotFoundError",
        "ProviderRequestError",
    ),
    _SERVE: ("LocalBackend",),
}
"""What to use today, to the names that osmosis_grpc does not have yet."""

_NOT_HERE: dict[str, tuple[str, ...]] = {
    "a server is registered nowhere, so it does not look up its own address": (
        "detect_public_ip",
        "detect_from_cloud_metadata",
        "detect_from_external_services",
        "PublicIPDetectionError",
    ),
    "use the module ipaddress of the standard library": ("validate_ipv4", "is_private_ip", "is_valid_hostname_or_ip"),
    "nothing here uses httpx: run create_mock_trainer_app() with uvicorn, and pass its URL as server_url": (
        "patch_httpx_for_mock_trainer",
    ),
    "make a token, for example with secrets.token_urlsafe(32), and pass it as api_key": (
        "generate_api_key",
        "validate_api_key",
    ),
}
"""What to use instead, to the names of the Osmosis SDK 0.2.14 that have no meaning here."""

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
    """Return the sentence for a name that osmosis_grpc does not have; None for any other name."""
    for known, when in ((_NOT_YET, " yet"), (_NOT_HERE, "")):
        for instead, names in known.items():
            if name in names:
                return f"{name} is not in osmosis_grpc{when}: {instead}"
    return None


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
