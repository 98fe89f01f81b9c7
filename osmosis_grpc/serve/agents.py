"""Makes the sources of configurations from the options of a command."""

from typing import TYPE_CHECKING, Any

from osmosis_grpc.agent.loader import LoadError
from osmosis_grpc.agent.workflow_sources import ConfigSources, Texts, WorkflowToml, WorkflowTomlError
from osmosis_grpc.settings.line import OPTIONS, Line

if TYPE_CHECKING:
    from osmosis_grpc.settings.settings import RolloutServerSettings

VARIABLES = {option.name: option.variable for option in OPTIONS.values() if option.part == "server"}


def config_sources(options: "RolloutServerSettings", line: Line | None = None) -> ConfigSources:
    """Return the sources that the settings name. Raises LoadError for a file that cannot be used.

    `line` has the options of the command line, which are in the settings, too. Without it, all are of the environment.
    """
    try:
        toml = WorkflowToml() if options.config_file is None else WorkflowToml.read(options.config_file)
    except WorkflowTomlError as error:
        raise LoadError(str(error)) from None
    given: dict[str, Any] = {} if line is None else line.given["server"]
    in_file = {} if line is None else line.in_file
    places = {name: in_file.get(variable, variable) for name, variable in VARIABLES.items()}

    def before(name: str) -> Texts:
        texts: tuple[str, ...] = getattr(options, name)
        return Texts(values=texts[: len(texts) - len(given.get(name, ()))], place=places[name])

    return ConfigSources(
        toml=toml,
        workflow=given.get("workflow_config", ()),
        grader=given.get("grader_config", ()),
        grader_class=options.grader or "",
        workflow_variable=before("workflow_config"),
        grader_variable=before("grader_config"),
        grader_class_place="--grader" if "grader" in given else places["grader"],
    )
