"""Says in one sentence how to fix a failed import of an agent, and imports litellm without using the network."""

import os
from dataclasses import replace

from osmosis_grpc.protocol.errors import install, missing_extra
from osmosis_grpc.protocol.types import Failure
from osmosis_grpc.protocol.types.outcome import clip

_EXTRAS = {
    "agents": "openai-agents",
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

_PACKAGES = {"anthropic": "anthropic", "transformers": "transformers"}
"""The package of a library that the examples or the documentation use, and that has no extra."""

_AGENTIC = ("workers", "verl.workers.rollout.agentic_rollout")
"""Where the Agentic Rollout Library had its modules."""

_SDK = "osmosis_ai"
_PREFIX = "change the prefix 'osmosis_ai' to 'osmosis_grpc' in its imports"


def _missing_module(name: str) -> str | None:
    top = name.partition(".")[0]
    if top == _SDK:
        return f"there is no module {name!r}: {_PREFIX}"
    if any(f"{name}.".startswith(f"{module}.") for module in _AGENTIC):
        return f"there is no module {name!r}: the names of the Agentic Rollout Library are in osmosis_grpc.agentic"
    if top in _EXTRAS:
        return missing_extra(f"the module {name!r} is missing: the agent", _EXTRAS[top])
    if top == "osmosis_grpc":
        return f"there is no module {name!r}: the names for agents are in osmosis_grpc.rollout"
    return None


def missing_import(error: ModuleNotFoundError) -> str:
    """Return what to do about an import of a missing module."""
    name = error.name or ""
    package = _PACKAGES.get(name.partition(".")[0], "PACKAGE")
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return _missing_module(name) or f"{text}; install its package with {install(package)}, or correct the import"


def import_hint(error: BaseException | None, hint: str) -> str:
    """Return what to do about an exception of an import; `hint` if no module is missing."""
    return missing_import(error) if isinstance(error, ModuleNotFoundError) and error.name else hint


def with_import_hint(failure: Failure, error: BaseException) -> Failure:
    """Return the failure for an exception. If a module is missing, the message has advice."""
    return replace(failure, message=clip(import_hint(error, failure.message)))


def of_the_sdk(cls: type) -> str | None:
    """Return what to do about a subclass of one of the Osmosis SDK's classes; None for any other class."""
    base = next((base for base in cls.__mro__ if base.__module__.partition(".")[0] == _SDK), None)
    return f"{cls.__name__} derives from {base.__module__}.{base.__name__}: {_PREFIX}" if base else None


LOCAL_PRICES = "LITELLM_LOCAL_MODEL_COST_MAP"


def use_local_prices() -> None:
    """Let litellm read the prices of its own package, unless the user has set the variable."""
    os.environ.setdefault(LOCAL_PRICES, "True")
