"""Makes the sources of configurations from the options of a command."""

from typing import TYPE_CHECKING

from osmosis_grpc.agent.loader import LoadError
from osmosis_grpc.agent.workflow_sources import ConfigSources
from osmosis_grpc.agent.workflow_toml import WorkflowToml, WorkflowTomlError

if TYPE_CHECKING:
    from osmosis_grpc.settings import RolloutServerSettings


def config_sources(options: "RolloutServerSettings") -> ConfigSources:
    """Return the sources that the settings name. Raises LoadError for a file that cannot be used."""
    try:
        toml = WorkflowToml() if options.config_file is None else WorkflowToml.read(options.config_file)
    except WorkflowTomlError as error:
        raise LoadError(str(error)) from None
    return ConfigSources(
        toml=toml, workflow=options.workflow_config, grader=options.grader_config, grader_class=options.grader or ""
    )
