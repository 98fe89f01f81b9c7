"""Finds the workflow, the grader and their configurations in a module."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from osmosis_grpc.agent.config_values import config_class
from osmosis_grpc.agent.grader import Grader
from osmosis_grpc.agent.workflow import AgentWorkflow
from osmosis_grpc.agent.workflow_config import AgentWorkflowConfig, GraderConfig
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable

T = TypeVar("T")


class DiscoveryError(ValueError):
    """A module has not exactly one workflow, or more than one grader or configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWorkflow:
    """A workflow with its configuration and its grader. validate_workflow() checks it before it runs."""

    workflow: type[AgentWorkflow[Any]]
    config: AgentWorkflowConfig | None = None
    grader: type[Grader[Any]] | None = None
    grader_config: GraderConfig | None = None

    @property
    def name(self) -> str:
        """The name that trainers use: that of the configuration, or of the class."""
        return self.config.name if self.config is not None else self.workflow.__name__

    def runnable(self) -> WorkflowRunnable:
        """Return the Runnable for the engine. Raises AgentNameError."""
        return WorkflowRunnable(self.workflow, self.config, self.grader, self.grader_config)


def discover(module: ModuleType, entry_point: str, workflow: type[AgentWorkflow[Any]] | None = None) -> FoundWorkflow:
    """Return the workflow of a module, its grader and their configurations.

    Names count once for each object, and classes that the module imports count, too. `workflow` is the workflow to take
    if the module may have several. Then only instances of the class in its brackets count as its configuration. Raises
    DiscoveryError, which names `entry_point`.
    """
    kind: type = AgentWorkflowConfig
    if workflow is not None:
        kind = config_class(workflow, AgentWorkflow) or kind
    if workflow is None:
        found = _classes(module, AgentWorkflow)
        if not found:
            raise DiscoveryError(f"No AgentWorkflow subclass found in {entry_point!r}")
        workflow = _only(found, entry_point, "AgentWorkflow subclasses")
        assert workflow is not None
    return FoundWorkflow(
        workflow=workflow,
        config=_only(_instances(module, kind), entry_point, "AgentWorkflowConfig instances"),
        grader=_only(_classes(module, Grader), entry_point, "Grader subclasses"),
        grader_config=_only(_instances(module, GraderConfig), entry_point, "GraderConfig instances"),
    )


def grader_config_of(module: ModuleType) -> GraderConfig | None:
    """Return the configuration that a module has for its grader. Raises DiscoveryError if it has several."""
    return _only(_instances(module, GraderConfig), module.__name__, "GraderConfig instances")


def _only(found: dict[str, T], entry_point: str, what: str) -> T | None:
    if len(found) > 1:
        names = ", ".join(sorted(found))
        raise DiscoveryError(f"Multiple {what} found in {entry_point!r}: {names}; keep only one in this file")
    return next(iter(found.values()), None)


def _classes(module: ModuleType, base: Any) -> dict[str, type[Any]]:
    named = _instances(module, type)
    return {name: value for name, value in named.items() if value is not base and issubclass(value, base)}


def _instances(module: ModuleType, kind: type[T]) -> dict[str, T]:
    """Return the instances of a class among a module's names, each by its first name."""
    first = {id(value): (name, value) for name, value in reversed(vars(module).items())}
    return {name: value for name, value in reversed(first.values()) if isinstance(value, kind)}
