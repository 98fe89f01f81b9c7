"""The configurations of workflows and graders, as pydantic models.

Importing this module imports pydantic, so modules that every server imports do not import it.
"""

from pydantic import BaseModel, ConfigDict, Field


class ConcurrencyConfig(BaseModel):
    """How many rollouts of one workflow run at once."""

    max_concurrent: int | None = Field(default=None, ge=1)
    """At least 1. None means no limit besides the server's."""


class BaseConfig(BaseModel):
    """The fields that every configuration has. Fields that a class does not name are kept, and assignments are checked.

    A subclass adds fields. It can set `extra="forbid"` in its model_config, to refuse unknown fields.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    name: str
    """The name of the workflow or the grader. Trainers call a workflow by this name: 1 to 256 characters."""
    description: str | None = None
    """A text for people."""


class AgentWorkflowConfig(BaseConfig):
    """The configuration of a workflow."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)
    """How many rollouts of the workflow run at once."""


class GraderConfig(BaseConfig):
    """The configuration of a grader. It is no AgentWorkflowConfig."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)
    """How many rollouts are graded at once."""
