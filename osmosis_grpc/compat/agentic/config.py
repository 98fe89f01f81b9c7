"""The configuration of AgenticRollout, from Python, JSON, YAML or a dict."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from osmosis_grpc.compat.agentic.checks import check_count, check_flag, check_objects, check_temperature, check_text
from osmosis_grpc.protocol.errors import InvalidArgument, MissingExtraError


@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticRolloutConfig:
    """How rollouts are made. Raises InvalidArgument, which names the field."""

    agent_type: str = "react"
    """The name of an agent type, see list_agents(): react, tool, coding, or a registered one."""
    max_steps: int = 10
    """The most replies of the model in one rollout."""
    max_tokens_per_step: int = 16000
    """The most tokens of one reply."""
    temperature: float = 0.7
    tools_config: dict[str, dict[str, Any]] | None = None
    """Tools by name with their options, see list_tools(). None means no tools, or the agent's own tools."""
    interactions_config: dict[str, dict[str, Any]] | None = None
    """Interactions by name with their options, such as check_answer. They react to a final answer."""
    batch_size: int = 1
    """How many trajectories batches() yields at once."""
    concurrent_requests: int = 4
    """The most rollouts that run at once."""
    include_trajectory_in_output: bool = True
    """Whether an output of generate_sequences() has the trajectory."""
    save_trajectories: bool | None = None
    """Whether each trajectory is appended to a file. None means the variable AGENTIC_SAVE_TRAJECTORIES, or no."""
    trajectory_save_path: str | None = None
    """The file, if the name ends in .jsonl, or the folder of trajectories.jsonl. None means ./trajectories."""
    agent_options: dict[str, Any] = field(default_factory=dict)
    """Further options of the agent type, such as max_parallel_calls."""

    def __new__(cls, **values: Any) -> "AgenticRolloutConfig":
        _check_names(values)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                check(name, value)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AgenticRolloutConfig":
        """Make a configuration of a dict. Raises InvalidArgument for an unknown field."""
        if not isinstance(values, Mapping):
            raise InvalidArgument("config", f"is a {type(values).__name__}, not an object")
        _check_names(values)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as a dict. from_dict() makes an equal configuration of it."""
        return asdict(self)

    @classmethod
    def from_json(cls, text: str) -> "AgenticRolloutConfig":
        """Make a configuration of a JSON object. Raises InvalidArgument."""
        try:
            return cls.from_dict(json.loads(text))
        except ValueError as error:
            raise InvalidArgument("config", f"is not JSON: {error}") from None

    def to_json(self) -> str:
        """Return the configuration as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_yaml(cls, text: str) -> "AgenticRolloutConfig":
        """Make a configuration of YAML. Raises InvalidArgument, and MissingExtraError without the extra `agentic`."""
        yaml = _yaml()
        try:
            return cls.from_dict(yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise InvalidArgument("config", f"is not YAML: {error}") from None

    def to_yaml(self) -> str:
        """Return the configuration as YAML. Raises MissingExtraError without the extra `agentic`."""
        text: str = _yaml().safe_dump(self.to_dict(), sort_keys=False)
        return text


def _check_names(values: Iterable[Any]) -> None:
    known = [each.name for each in fields(AgenticRolloutConfig)]
    for name in values:
        if name not in known:
            close = get_close_matches(str(name), known, 1)
            which = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(known)}"
            raise InvalidArgument(str(name), f"is no field; {which}")


def _check_options(field: str, value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise InvalidArgument(field, f"{value!r} is not an object of options")


_CHECKS = {
    "agent_type": check_text,
    "max_steps": check_count,
    "max_tokens_per_step": check_count,
    "temperature": check_temperature,
    "tools_config": check_objects,
    "interactions_config": check_objects,
    "batch_size": check_count,
    "concurrent_requests": check_count,
    "include_trajectory_in_output": check_flag,
    "save_trajectories": check_flag,
    "trajectory_save_path": check_text,
    "agent_options": _check_options,
}
"""The check of each field."""
_OPTIONAL = ("tools_config", "interactions_config", "save_trajectories", "trajectory_save_path")


def _yaml() -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingExtraError("a configuration in YAML", "agentic") from None
    return yaml
