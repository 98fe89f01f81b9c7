"""The options for the configurations of workflows, for commands that run agents in their own process.

Imports only typer; what the options name is read later.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_grpc.cli.config_options import ConfigFile, GraderClass, GraderConfig, WorkflowConfig
from osmosis_grpc.cli.option_groups import with_options

if TYPE_CHECKING:
    from osmosis_grpc.agent.workflow_sources import ConfigSources


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options --config, --workflow-config, --grader-config and --grader."""

    config: ConfigFile = None
    workflow_config: WorkflowConfig = None
    grader_config: GraderConfig = None
    grader: GraderClass = None

    def sources(self) -> "ConfigSources":
        """Return the sources that the options and the environment name. Raises LoadError."""
        from osmosis_grpc.agent.loader import LoadError
        from osmosis_grpc.serve.agents import config_sources
        from osmosis_grpc.settings.settings import RolloutServerSettings, check_server_table, problems

        given = {"config_file": Path(self.config)} if self.config else {}
        try:
            known = RolloutServerSettings(**given)  # type: ignore[arg-type]
            if known.config_file is not None:
                check_server_table(known.config_file)
        except ValueError as error:
            raise LoadError(problems(error) if hasattr(error, "errors") else str(error)) from None  # type: ignore[arg-type]
        found = config_sources(known)
        return replace(
            found,
            workflow=tuple(self.workflow_config or ()),
            grader=tuple(self.grader_config or ()),
            grader_class=self.grader or found.grader_class,
            grader_class_place="--grader" if self.grader else found.grader_class_place,
        )


with_agent_sources = with_options(SourceOptions, "sources")
"""Gives a command the options of SourceOptions. The function gets them as its parameter `sources`."""
