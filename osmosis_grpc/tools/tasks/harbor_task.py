"""Reads a task in Harbor's format: a folder with task.toml, instruction.md, environment/, tests/ and solution/.

An unsupported key that would change the task is refused with an error that names it. Unknown keys, which Harbor
ignores, are logged.
"""

import logging
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_grpc.tools.containers.archive import digest_of_folder
from osmosis_grpc.tools.docker.config import HOST

log = logging.getLogger(__name__)

CONFIG = "task.toml"
COMPOSE = "docker-compose.yaml"
ARTIFACTS = "/logs/artifacts"
"""The folder whose files are always artifacts."""
_UNSUPPORTED: Mapping[str, tuple[str, ...]] = {
    "": ("steps", "multi_step_reward_strategy"),
    "environment": ("gpus", "gpu_types", "tpu", "mcp_servers", "skills_dir", "healthcheck"),
    "verifier": ("collect",),
}
"""Keys that would change a task, by their tables."""
_KNOWN: Mapping[str, str] = {
    "": "schema_version version task metadata verifier agent environment solution source artifacts",
    "agent": "timeout_sec user network_mode allowed_hosts",
    "verifier": "timeout_sec env user environment_mode environment network_mode allowed_hosts",
    "environment": "build_timeout_sec docker_image os cpus memory_mb memory storage_mb storage env workdir "
    "network_mode allowed_hosts allow_internet",
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([GMK])B?", re.IGNORECASE)
_MIB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The environment of a task's agent or of its tests."""

    image: str
    """A prebuilt image; empty if it is built from `folder`."""
    folder: Path
    """The folder with the Dockerfile."""
    build_seconds: float = 600.0
    cpus: float | None = None
    memory_mib: int | None = None
    workdir: str = ""
    """The working folder; empty for the image's."""
    env: Mapping[str, str] = field(default_factory=dict)
    network: bool = True
    """Whether the whole network can be reached."""
    hosts: tuple[str, ...] = ()
    """The hosts that can be reached otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A path that is copied from the box of the agent into a separate box of the tests."""

    source: str
    """An absolute path, or one relative to the working folder."""
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """A task."""

    name: str
    """The name of its folder."""
    folder: Path
    instruction: str
    place: Place
    """The environment of the agent."""
    agent_seconds: float | None = None
    """The time limit of the agent, in seconds."""
    agent_user: str | int | None = None
    """The user of the agent; None for the image's."""
    verifier_place: Place
    """The environment of the tests."""
    verifier_seconds: float = 600.0
    verifier_user: str | int | None = None
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    separate: bool = False
    """Whether the tests get only the artifacts instead of the whole file system that the agent has left."""
    bundled_tests: bool = False
    """Whether the image of the tests already has the tests."""
    artifacts: tuple[Artifact, ...] = ()

    @property
    def tests(self) -> Path:
        """The folder with test.sh. The agent never sees it."""
        return self.folder / "tests"

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation with which a rollout begins."""
        return [{"role": "user", "content": self.instruction}]

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of a request for the task. A server with other files of the task refuses it. Raises OSError."""
        return {"task": self.name, "task_digest": self.digest()}

    def digest(self) -> str:
        """Return a hash of all files but those of the solution. Raises OSError."""
        return digest_of_folder(self.folder, without=("solution",))


def load_task(folder: Path) -> HarborTask:
    """Return the task of a folder. Raises ValueError, which begins with the file, for missing or refused parts."""
    path = folder / CONFIG
    try:
        table = tomllib.loads(path.read_text())
        instruction = (folder / "instruction.md").read_text()
    except FileNotFoundError as error:
        raise ValueError(f"{error.filename}: there is no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    try:
        return _task(folder, instruction, table)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def load_tasks(folder: Path) -> dict[str, HarborTask]:
    """Return the tasks of a folder, by their names; or the one task that the folder is.

    Args:
        folder: A task, or a folder of tasks. Its folders without task.toml are left out.

    Raises:
        ValueError: There is no task, or one cannot be used. The message begins with the file.
    """
    one = (folder / CONFIG).is_file()
    folders = [folder] if one else sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
    if not folders:
        raise ValueError(f"{folder}: there is no {CONFIG}, neither in it nor in a folder below it")
    return {task.name: task for task in map(load_task, folders)}


def _task(folder: Path, instruction: str, table: Mapping[str, Any]) -> HarborTask:
    agent, verifier = _table(table, "agent"), _table(table, "verifier")
    _check(folder, table)
    if (folder / "trajectory.json").exists():
        raise ValueError("trajectory.json: a conversation to begin from is not supported")
    place = _place(folder / "environment", _table(table, "environment"), agent, "environment")
    own = verifier.get("environment")
    mode = verifier.get("environment_mode") or ("shared" if own is None else "separate")
    if mode not in ("shared", "separate") or (mode == "shared" and own is not None):
        raise ValueError(f"verifier.environment_mode: is {mode!r}, which does not fit to the other keys")
    if own is not None:
        _check(folder, {"environment": own}, "verifier.")
    of_tests = dict(_table(table, "environment") if own is None else own)
    bundled, built = False, folder / "environment"
    if mode == "separate" and own is not None and own.get("docker_image"):
        bundled = True
    elif mode == "separate" and (folder / "tests" / "Dockerfile").is_file():
        bundled, built = True, folder / "tests"
        of_tests.pop("docker_image", None)
    else:
        of_tests["docker_image"] = place.image
    if mode == "separate" and (folder / "tests" / COMPOSE).exists():
        raise ValueError(f"tests/{COMPOSE}: several containers for a task are not supported")
    if not bundled and not (folder / "tests" / "test.sh").is_file():
        raise ValueError("tests/test.sh is missing")
    verifier_place = _place(built, of_tests, verifier, "verifier.environment")
    return HarborTask(
        name=folder.resolve().name,
        folder=folder.resolve(),
        instruction=instruction,
        place=place,
        agent_seconds=_number(agent, "timeout_sec"),
        agent_user=agent.get("user"),
        verifier_place=verifier_place,
        verifier_seconds=_number(verifier, "timeout_sec") or 600.0,
        verifier_user=verifier.get("user"),
        verifier_env=dict(_table(verifier, "env")),
        separate=mode == "separate",
        bundled_tests=bundled,
        artifacts=(Artifact(source=ARTIFACTS), *map(_artifact, table.get("artifacts", []))),
    )


def _check(folder: Path, table: Mapping[str, Any], within: str = "") -> None:
    """Raise ValueError for keys that are not supported, and log those that are unknown."""
    for name, keys in _UNSUPPORTED.items():
        part = table if not name else _table(table, name)
        dot = f"{within}{name}." if name else within
        for key in keys:
            if part.get(key):
                raise ValueError(f"{dot}{key}: is not supported")
        if not name or name in table:
            for key in sorted(part.keys() - set(_KNOWN[name].split()) - set(keys)):
                log.warning("task %s: %s%s is unknown, and has no effect", folder.name, dot, key)
    for key in sorted({"storage", "storage_mb"} & _table(table, "environment").keys()):
        log.warning("task %s: %senvironment.%s has no effect: a box has no limit for it", folder.name, within, key)


def _place(folder: Path, own: Mapping[str, Any], phase: Mapping[str, Any], name: str) -> Place:
    """Return the environment of a phase of a task. The network of the phase replaces that of the environment."""
    if str(own.get("os", "linux")).lower() != "linux":
        raise ValueError(f"{name}.os: {own['os']!r} is not supported")
    if (folder / COMPOSE).exists():
        raise ValueError(f"{folder.name}/{COMPOSE}: several containers for a task are not supported")
    image = str(own.get("docker_image") or "")
    if not image and not (folder / "Dockerfile").is_file():
        raise ValueError(f"{folder.name}/Dockerfile is missing, and so is {name}.docker_image")
    mode = phase.get("network_mode") or own.get("network_mode")
    hosts = phase.get("allowed_hosts") if phase.get("network_mode") else own.get("allowed_hosts")
    if mode is None:
        mode = "public" if own.get("allow_internet", True) else "no-network"
    if mode not in ("public", "no-network", "allowlist"):
        raise ValueError(f"{name}.network_mode: {mode!r} is unknown")
    strange = next((host for host in hosts or () if not HOST.fullmatch(str(host))), None)
    if strange is not None:
        raise ValueError(f"{name}.allowed_hosts: {strange!r} is not the name of a host, which alone is supported")
    memory = _number(own, "memory_mb") or _mib(own.get("memory"), f"{name}.memory")
    return Place(
        image=image,
        folder=folder,
        build_seconds=_number(own, "build_timeout_sec") or 600.0,
        cpus=_number(own, "cpus"),
        memory_mib=None if memory is None else int(memory),
        workdir=str(own.get("workdir") or ""),
        env=dict(_table(own, "env")),
        network=mode == "public",
        hosts=tuple(hosts or ()) if mode == "allowlist" else (),
    )


def _artifact(entry: Any) -> Artifact:
    if isinstance(entry, str):
        return Artifact(source=entry)
    if entry.get("service") not in (None, "main"):
        raise ValueError("artifacts.service: several containers for a task are not supported")
    return Artifact(source=str(entry["source"]), exclude=tuple(entry.get("exclude", ())))


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, Mapping):
        raise ValueError(f"{key}: is no table")
    return found


def _number(table: Mapping[str, Any], key: str) -> float | None:
    value = table.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
        raise ValueError(f"{key}: {value!r} is not a number above 0")
    return None if value is None else float(value)


def _mib(text: Any, name: str) -> float | None:
    if text is None:
        return None
    found = _SIZE.fullmatch(str(text).strip())
    if not found:
        raise ValueError(f"{name}: {text!r} is no size such as 2G")
    return float(found[1]) * _MIB[found[2].upper()]


def resolved_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables in which ${NAME} and ${NAME:-default} are replaced by the server's variables.

    Raises ValueError for a variable that the server does not have.
    """
    return {name: _VARIABLE.sub(_of_server, str(text)) for name, text in env.items()}


def _of_server(found: "re.Match[str]") -> str:
    value = os.environ.get(found[1], found[2])
    if value is None:
        raise ValueError(f"env: the server has no variable {found[1]}")
    return value


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row of a dataset for each task, in the order of their names. Raises ValueError, OSError."""
    for task in load_tasks(folder).values():
        yield {"user_prompt": task.instruction, **task.metadata}
