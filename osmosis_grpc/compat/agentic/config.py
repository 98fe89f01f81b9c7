"""The configuration of AgenticRollout, from Python, JSON, YAML or a dict, and the variables of the environment.

A value in the request wins over an argument of the caller, and an argument wins over a variable.
"""

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from osmosis_grpc.protocol.errors import InvalidArgument, MissingExtraError

LOG_LEVEL = "AGENTIC_LOG_LEVEL"
SAVE_TRAJECTORIES = "AGENTIC_SAVE_TRAJECTORIES"
SWITCHES = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
Count = Annotated[int, Field(ge=1, strict=True)]
"""A whole number of at least 1."""
Temperature = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
_Text = Annotated[str, Field(pattern=r"\S")]


@dataclass(frozen=True, slots=True)
class Provider:
    """The environment variables with a provider's key and URL, and the URL if the variable is not set."""

    key_variable: str
    url_variable: str
    usual_url: str

    def key(self, given: str | None) -> str | None:
        """Return the given key, otherwise the one in the environment; None if both are missing or empty."""
        return given or os.environ.get(self.key_variable) or None

    def url(self, given: str | None) -> str:
        """Return the given base URL, otherwise the one in the environment, otherwise the usual one."""
        return given or os.environ.get(self.url_variable) or self.usual_url


OPENAI = Provider("OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com/v1")
ANTHROPIC = Provider("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "https://api.anthropic.com")


def save_trajectories(given: bool | None = None) -> bool:
    """Return the given value, otherwise AGENTIC_SAVE_TRAJECTORIES, otherwise False.

    Raises ValueError if the variable is neither true nor false.
    """
    if given is not None:
        return given
    text = os.environ.get(SAVE_TRAJECTORIES, "")
    if text and text.strip().lower() not in SWITCHES:
        raise ValueError(f"{SAVE_TRAJECTORIES}: {text!r:.40} is neither true nor false")
    return SWITCHES.get(text.strip().lower(), False)


def log_level() -> int | None:
    """Return AGENTIC_LOG_LEVEL as a number; None if it is not set. Raises ValueError for an unknown level."""
    text = os.environ.get(LOG_LEVEL, "")
    if text.strip().upper() not in ("", *LEVELS):
        raise ValueError(f"{LOG_LEVEL}: {text!r:.40} is none of {', '.join(LEVELS)}")
    return logging.getLevelNamesMapping().get(text.strip().upper())


def without_keys(text: str) -> str:
    """Replace the API keys of the environment in a text."""
    for provider in (OPENAI, ANTHROPIC):
        key = provider.key(None)
        text = text.replace(key, "[key]") if key else text
    return text


class AgenticRolloutConfig(BaseModel):
    """The configuration of an AgenticRollout. Raises InvalidArgument, which names the field."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    agent_type: _Text = "react"
    """The name of an agent type, see list_agents(): react, tool, coding, or a registered one."""
    max_steps: Count = 10
    """The most replies of the model in one rollout."""
    max_tokens_per_step: Count = 16000
    """The most tokens of one reply."""
    temperature: Temperature = 0.7
    tools_config: dict[str, dict[str, Any]] | None = None
    """The options of each tool by its name, see list_tools(). None means the agent type's own tools, if it has any."""
    interactions_config: dict[str, dict[str, Any]] | None = None
    """The options of each interaction by its name, such as check_answer. Interactions react to a final answer."""
    batch_size: Count = 1
    """How many trajectories batches() yields at once."""
    concurrent_requests: Count = 4
    """The most rollouts that run at once."""
    include_trajectory_in_output: bool = True
    """Whether each output of generate_sequences() includes the trajectory."""
    save_trajectories: bool | None = None
    """Whether each trajectory is appended to a file. None means the variable AGENTIC_SAVE_TRAJECTORIES, or else no."""
    trajectory_save_path: _Text | None = None
    """A file whose name ends in .jsonl, or a folder for trajectories.jsonl. None means the folder ./trajectories."""
    agent_options: dict[str, Any] = Field(default_factory=dict)
    """Further options of the agent type, such as max_parallel_calls."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            _refuse(error)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AgenticRolloutConfig":
        """Make a configuration from a dict. Raises InvalidArgument for an unknown field."""
        if not isinstance(values, Mapping):
            raise InvalidArgument("config", f"is a {type(values).__name__}, not an object")
        return cls(**{str(name): value for name, value in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as a dict, from which from_dict() makes an equal configuration."""
        return self.model_dump()

    @classmethod
    def from_json(cls, text: str) -> "AgenticRolloutConfig":
        """Make a configuration from a JSON object. Raises InvalidArgument."""
        try:
            return cls.from_dict(json.loads(text))
        except ValueError as error:
            raise InvalidArgument("config", f"is not JSON: {error}") from None

    def to_json(self) -> str:
        """Return the configuration as JSON."""
        return self.model_dump_json(indent=2)

    @classmethod
    def from_yaml(cls, text: str) -> "AgenticRolloutConfig":
        """Make a configuration from YAML. Raises InvalidArgument, and MissingExtraError without the extra `agentic`."""
        yaml = _yaml()
        try:
            return cls.from_dict(yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise InvalidArgument("config", f"is not YAML: {error}") from None

    def to_yaml(self) -> str:
        """Return the configuration as YAML. Raises MissingExtraError without the extra `agentic`."""
        text: str = _yaml().safe_dump(self.to_dict(), sort_keys=False)
        return text


def check(field: str, kind: Any, value: Any) -> None:
    """Check that a value has a type, such as Count. Raises InvalidArgument, which names the field."""
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        raise InvalidArgument(field, f"{value!r:.80}: {error.errors()[0]['msg']}") from None


def _refuse(error: ValidationError) -> NoReturn:
    problem = error.errors()[0]
    field = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        raise InvalidArgument(field, no_field(field, AgenticRolloutConfig.model_fields)) from None
    raise InvalidArgument(field, f"{problem['input']!r:.80}: {problem['msg']}") from None


def no_field(name: str, known: Iterable[str]) -> str:
    """Return the error text for an unknown field. It suggests the closest field, or lists all."""
    fields = list(known)
    close = get_close_matches(name, fields, 1)
    return f"is not a field; {f'did you mean {close[0]}?' if close else 'the fields are ' + ', '.join(fields)}"


def _yaml() -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingExtraError("a configuration in YAML", "agentic") from None
    return yaml
