"""Imports each name of a module when it is first used, and says what replaces the names of older systems.

The module's .pyi file lists the names.
"""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from osmosis_grpc.protocol.errors import MissingExtraError

_AGENTIC = "import {} from osmosis_grpc.agentic"
_REWARD = "compute the reward in the agent and pass it to ctx.complete(messages, reward=...)"
_ADDRESS = "a server is registered nowhere, so it does not look up its own address"
_IP = "use the module ipaddress of the standard library"
_KEY = "make a token, for example with secrets.token_urlsafe(32), and pass it as api_key"
INSTEAD = {
    "AgenticRollout": _AGENTIC,
    "AgenticRolloutConfig": _AGENTIC,
    "BaseAgent": _AGENTIC,
    "BaseAgenticTool": _AGENTIC.format("BaseTool"),
    "StepType": _AGENTIC,
    "Trajectory": _AGENTIC,
    "TrajectoryStep": _AGENTIC,
    "LocalBackend": "serve the workflow with osmosis-grpc serve -m entrypoint.py, or run it with "
    "osmosis_grpc.testing.run_rollout",
    "MissingAPIKeyError": _REWARD,
    "ModelNotFoundError": _REWARD,
    "ProviderRequestError": _REWARD,
    "RubricResult": _REWARD,
    "evaluate_rubric": _REWARD,
    "osmosis_rubric": _REWARD,
    "PublicIPDetectionError": _ADDRESS,
    "detect_from_cloud_metadata": _ADDRESS,
    "detect_from_external_services": _ADDRESS,
    "detect_public_ip": _ADDRESS,
    "is_private_ip": _IP,
    "is_valid_hostname_or_ip": _IP,
    "validate_ipv4": _IP,
    "generate_api_key": _KEY,
    "validate_api_key": _KEY,
    "patch_httpx_for_mock_trainer": "run create_mock_trainer_app() with uvicorn, and pass its URL as server_url",
}
"""What to use instead, by name."""
_NEEDS_SERVER_EXTRA = ("osmosis_gateway.", "osmosis_grpc.settings.settings")


def missing_name(name: str, module: str) -> str | None:
    """Return the sentence for a name that `module` does not have; None for a name that no older system has."""
    return f"{name} is not in {module}: {INSTEAD[name].format(name)}" if name in INSTEAD else None


def attach(module: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a module's `__getattr__`, `__dir__` and `__all__`, from the imports in the .pyi file beside it."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text())
    sources = {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom) and statement.module is not None
        for alias in statement.names
    }
    names = sorted(sources)

    def getattribute(name: str) -> Any:
        # `from ... import` shows the texts of ImportError and of MissingExtraError
        source, real_name = sources.get(name, ("", ""))
        if not source:
            sentence = missing_name(name, module)
            if sentence is not None:
                raise ImportError(sentence, name=module)
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(source), real_name)
        except ModuleNotFoundError as error:
            if source.startswith(_NEEDS_SERVER_EXTRA) and not str(error.name).startswith("osmosis"):
                raise MissingExtraError(f"{module}.{name}", "server") from error
            raise

    return getattribute, lambda: names, names
