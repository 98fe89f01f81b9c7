"""The options for the configurations of workflows, for commands that run agents in their own process."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_grpc.cli.option_groups import choice, with_options

if TYPE_CHECKING:
    from osmosis_grpc.agent.workflow_sources import ConfigSources


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options --config, --workflow-config, --grader-config and --grader."""

    config: str | None = choice("--config FILE", "TOML file with [workflow.config] and [grader.config].")
    workflow_config: tuple[str, ...] = choice(
        "--workflow-config KEY=VALUE", "A value of the workflow's configuration; repeatable.", ()
    )
    grader_config: tuple[str, ...] = choice(
        "--grader-config KEY=VALUE", "A value of the grader's configuration; repeatable.", ()
    )
    grader: str | None = choice("--grader MODULE:CLASS", "The grader, instead of the one in the workflow's file.")

    def sources(self) -> "ConfigSources":
        """Return the sources that the options and the environment name. Raises LoadError."""
        from osmosis_grpc.agent.loader import LoadError
        from osmosis_grpc.serve.agents import config_sources
        from osmosis_grpc.settings.settings import RolloutServerSettings, check_tables, problems

        given = {"config_file": Path(self.config)} if self.config else {}
        try:
            known = RolloutServerSettings(**given)  # type: ignore[arg-type]
            if known.config_file is not None:
                check_tables(known.config_file)
        except ValueError as error:
            raise LoadError(problems(error) if hasattr(error, "errors") else str(error)) from None  # type: ignore[arg-type]
        found = config_sources(known)
        return replace(
            found,
            workflow=self.workflow_config,
            grader=self.grader_config,
            grader_class=self.grader or found.grader_class,
            grader_class_place="--grader" if self.grader else found.grader_class_place,
        )


with_agents = with_options(SourceOptions, "agents")
"""Gives a command the options of SourceOptions. The function gets them as its parameter `agents`."""
