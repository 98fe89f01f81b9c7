"""Error texts for imports of names of the Osmosis SDK and the Agentic Rollout Library that are missing here.

Each text is one sentence. It says where the name is, or what to use until osmosis_grpc has the name.
"""

from dataclasses import replace

from osmosis_grpc.protocol.errors import install, missing_extra
from osmosis_grpc.protocol.types import Failure
from osmosis_grpc.protocol.types.outcome import clip

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

_EXTRAS = {
    "aiohttp": "policies",
    "fastapi": "server",
    "greenlet": "strands",
    "litellm": "litellm",
    "mcp": "mcp",
    "openai": "openai",
    "pyarrow": "parquet",
    "strands": "strands",
    "uvicorn": "server",
}
"""The extra of osmosis-grpc that has a module."""

_PACKAGES = {"agents": "openai-agents", "anthropic": "anthropic", "transformers": "transformers"}
"""The package of a library that the examples or the documentation use, and that has no extra."""

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


def missing_import(error: ModuleNotFoundError) -> str:
    """Return what to do about an import of a missing module, in one sentence."""
    name = error.name or ""
    known = missing_module(name)
    if known:
        return known
    package = _PACKAGES.get(name.partition(".")[0], "PACKAGE")
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text}; install its package with {install(package)}, or correct the import"


def import_hint(error: BaseException | None, hint: str) -> str:
    """Return what to do about an exception of an import; `hint` if no module is missing."""
    return missing_import(error) if isinstance(error, ModuleNotFoundError) and error.name else hint


def with_import_hint(failure: Failure, error: BaseException) -> Failure:
    """Return the failure for an exception. If a module is missing, the message says what to do about it."""
    return replace(failure, message=clip(import_hint(error, failure.message)))


def of_the_sdk(cls: type) -> str | None:
    """Return the sentence for a subclass of one of the Osmosis SDK's classes; None for any other class."""
    base = next((base for base in cls.__mro__ if base.__module__.partition(".")[0] == _SDK), None)
    return f"{cls.__name__} derives from {base.__module__}.{base.__name__}: {_PREFIX}" if base else None
