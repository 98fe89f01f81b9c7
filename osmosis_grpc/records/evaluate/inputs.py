"""The inputs on which a run's results depend. A run can only be continued with the same inputs."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.runnable import Runnable, as_runnable
from osmosis_grpc.agent.source_version import AgentVersion
from osmosis_grpc.environments.loading import open_environment
from osmosis_grpc.records.evaluate.eval_functions import EvalFunction
from osmosis_grpc.tools.containers.archive import digest_of_folder

Inputs = dict[str, dict[str, Any]]
"""Maps the name of a group of inputs to its parts by name. A part is a value, or the digest of a file."""
DIGEST = "sha256:"
MOST_NAMED = 5
"""How many differing parts of a group are named at most."""


def digest_of(path: Path) -> str:
    """Return the digest of a file, or of the files of a folder. Raises OSError."""
    if path.is_dir():
        return DIGEST + digest_of_folder(path)
    with path.open("rb") as file:
        return DIGEST + hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_environment(text: str) -> str:
    """Return a digest of an environment's name, options and library version."""
    environment = open_environment(text)
    return DIGEST + hashlib.sha256(f"{environment.spec} {environment.version}".encode()).hexdigest()


def agent_inputs(agent_loop: RolloutAgentLoop | Runnable) -> dict[str, Any]:
    """Return an agent's parts: its name, its files, and the packages that the files import."""
    return {"name": agent_loop.name, **_parts(AgentVersion.of(as_runnable(agent_loop).source))}


def program_inputs(name: str, command: str) -> dict[str, Any]:
    """Return the parts of a program: its name, its command, and the files that the command names."""
    files = [word for word in shlex.split(command) if Path(word).is_file()]
    return {"name": name, "command": command, **{word: digest_of(Path(word)) for word in files}}


def function_inputs(functions: Sequence[EvalFunction]) -> dict[str, Any]:
    """Return the parts of eval functions: their names and their files."""
    names = {function.name: "given" for function in functions}
    found = {name: value for function in functions for name, value in _parts(function.version).items()}
    return {**names, **found}


def _parts(version: AgentVersion) -> dict[str, Any]:
    """Return the parts of a version. The digest of a file begins with DIGEST."""
    return {name: DIGEST + part if name.endswith(".py") else part for name, part in version.parts.items()}


def changes(then: Mapping[str, Any], now: Inputs) -> list[str]:
    """Describe each group that differs, as in `agent (agent.py)` or `sampling (temperature 0.5, was 1)`."""
    found = []
    for group, parts in now.items():
        before = then.get(group)
        before = before if isinstance(before, Mapping) else {}
        names = [name for name in {**before, **parts} if before.get(name) != parts.get(name)]
        if names:
            more = f", and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            texts = (_change(name, before.get(name), parts.get(name)) for name in names[:MOST_NAMED])
            found.append(f"{group} ({', '.join(texts)}{more})")
    return found


def _change(name: str, then: Any, now: Any) -> str:
    if any(isinstance(value, str) and value.startswith(DIGEST) for value in (then, now)):
        return name
    return f"{name} {_shown(now)}, was {_shown(then)}"


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)
