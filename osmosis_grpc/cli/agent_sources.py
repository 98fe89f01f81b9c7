"""The sources of the configurations of workflows, for commands that run agents in their own process."""

from dataclasses import dataclass, replace
from pathlib import Path

from osmosis_grpc.agent.loader import LoadError
from osmosis_grpc.agent.workflow_sources import ConfigSources
from osmosis_grpc.serve.agents import config_sources


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options --config, --workflow-config, --grader-config and --grader."""

    config: str | None = None
    workflow_config: tuple[str, ...] = ()
    grader_config: tuple[str, ...] = ()
    grader: str | None = None

    def sources(self) -> ConfigSources:
        """Return the sources that the options and the environment name. Raises LoadError."""
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
            workflow=self.workflow_config,
            grader=self.grader_config,
            grader_class=self.grader or found.grader_class,
            grader_class_place="--grader" if self.grader else found.grader_class_place,
        )
