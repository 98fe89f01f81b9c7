"""Write docs/settings.md from the code, or with --check see that it is fresh.

The page has the declared options of serve and the gateway, the options of all other commands, the variables that are
read elsewhere, and the configuration of classes.
"""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.main import get_command

from osmosis_grpc import policies
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.workflow import AgentWorkflowConfig, ConcurrencyConfig, GraderConfig
from osmosis_grpc.agentic import (
    AgenticRolloutConfig,
    AnthropicFunction,
    CheckAnswer,
    CodingAgent,
    LLMConfig,
    OpenAIFunction,
    ReActAgent,
    Retries,
)
from osmosis_grpc.cli.commands import app
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.network.tls import ClientTls, ServerTls
from osmosis_grpc.records.export import Export, ExportOptions, VerlConfig
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.settings.command_line import OPTIONS
from osmosis_grpc.settings.option import Option
from osmosis_grpc.tools.docker import DockerConfig, DockerMachine
from osmosis_grpc.tools.kubernetes import KubernetesCluster, KubernetesConfig
from osmosis_grpc.tools.sandbox import LocalSandbox, SandboxLimits
from osmosis_grpc.trainer import RolloutClient, SyncTrainer, Trainer, TrainerConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

HEAD = """# Settings

This page has every setting: the options of [`osmosis-grpc serve` and of
`python -m osmosis_gateway`](#serve-and-the-gateway) with their environment variables, the options of the [other
commands](#other-commands), [other variables](#other-variables), and the [arguments and fields of classes](#classes).
`scripts/settings.py` writes this page from the code.

## serve and the gateway

- The first of these sources with a value wins: command line, environment variable, file `.env` in the current folder,
  the tables `[server]` and `[client]` of the TOML file of `serve --config`, default. In TOML, a key is the end of the
  variable's name in lower case, such as `grpc_port` in `[server]`. A secret must be in its own file, which you name in
  the TOML file.
- `serve --help` shows the most common options, `serve --help-all` all of them.
- In a variable, separate the items of a list by blanks, and tokens and commands by line breaks. A switch is `true` or
  `false`.
- A switch has a second flag that turns it off again: `--no-reload` for `--reload`, `--http` for `--no-http`.
- If a value is invalid, the program does not start, and the error names the option or the variable.
- An unknown variable with the prefix `OSMOSIS_ROLLOUT_` is ignored. A warning suggests the nearest known name.
- Some variables have no option.
- Settings that the Osmosis SDK has, too, keep its names and defaults.
"""

COMMANDS = """
## Other commands

`osmosis-grpc COMMAND --help` prints the same. Commands that call a server read missing credentials from the variables
`OSMOSIS_ROLLOUT_CLIENT_*` of the [agent server](#agent-server) above. The variable of `--state-dir` is that of
[serve](#journal).
"""

VARIABLES = {
    "OPENAI_API_KEY": "The key of the model server, for `test` without `--api-key`, and for OpenAIFunction. "
    "AnthropicFunction reads `ANTHROPIC_API_KEY`. litellm reads the variables of its providers.",
    "OPENAI_BASE_URL": "The default of `--base-url`, and of OpenAIFunction. AnthropicFunction reads "
    "`ANTHROPIC_BASE_URL`.",
    "AGENTIC_LOG_LEVEL": "The level of the logs of `osmosis_grpc.agentic`: DEBUG, INFO, WARNING, ERROR or CRITICAL.",
    "AGENTIC_SAVE_TRAJECTORIES": "Whether AgenticRollout saves trajectories if its configuration does not set it: "
    "`true` or `false`.",
    "ANTHROPIC_MODEL": "The model of ClaudeAPIClient without its argument `model`.",
    "KUBERNETES_SERVICE_HOST": "If it is set, KubernetesCluster uses the service account of its pod.",
    "NO_COLOR": "If it is set, there are no colours.",
    "TERM": "If it is `dumb`, there are no colours and no bars.",
    "COLUMNS": "The width of lines in a pipe, which is 80 by default.",
    "GRPC_TRACE": "The tracers of grpc. A server refuses to start with tracers that print bearer tokens, unless "
    "`--unsafe-trace` is set.",
    "GRPC_VERBOSITY": "The log level of grpc. Servers and trainers set it to ERROR, unless it or `GRPC_TRACE` is set.",
    "GRPC_ENABLE_FORK_SUPPORT": "Servers and trainers set it to 0 by default, because its handlers crash some forks.",
    "OTEL_TRACES_EXPORTER": "The exporter of `serve --otel`: `otlp` by default, `console`, `none`, or the name of "
    "another installed exporter. It reads its own variables, such as `OTEL_EXPORTER_OTLP_ENDPOINT`.",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "The protocol of the exporter `otlp`: `grpc` by default, or `http/protobuf`.",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "The same for traces only; it replaces `OTEL_EXPORTER_OTLP_PROTOCOL`.",
    "OTEL_SERVICE_NAME": "The name of this process in traces, `osmosis-grpc` by default.",
    "OTEL_RESOURCE_ATTRIBUTES": "More attributes of this process in traces; `service.name` among them is its name.",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "With `true`, the spans of `serve --otel` have messages, and "
    "arguments and results of tools.",
    "LITELLM_LOCAL_MODEL_COST_MAP": "Commands that load an agent set it to True by default, also for programs of "
    "`serve --command`. litellm then reads its prices from its own files and not from the network.",
    "OSMOSIS_TASK_FILE": "Programs of `serve --command` get the path of their task file in it.",
    "OSMOSIS_CHAT_COMPLETIONS_URL": "The `chat_completions_url` of a context without a rollout's own base URL.",
    "OSMOSIS_API_KEY": "The `api_key` of such a context.",
    "OSMOSIS_ROLLOUT_ID": "The `rollout_id` of such a context.",
    "PATH": "The folders in which `serve --command` finds its programs, which get it, too.",
    "VIRTUAL_ENV": "If neither this nor `CONDA_PREFIX` names an environment, the programs of `serve --command` get the "
    "server's own Python as `python`.",
    "CONDA_PREFIX": "See `VIRTUAL_ENV`.",
    "LD_LIBRARY_PATH": "The process that cleans up after the programs of `serve --command` gets it.",
}
"""The variables that the code reads besides those of options. Variables for tests are missing."""

CLASSES: dict[str, tuple[type, ...]] = {
    "Trainers": (Trainer, TrainerConfig, SyncTrainer, RolloutClient),
    "Servers in Python": (AgentServer, ServerConfig),
    "Export": (Export, ExportOptions, VerlConfig),
    "Credentials and TLS": (Credentials, ClientTls, ServerSecurity, ServerTls),
    "Policies": tuple(each for name in policies.__all__ if isinstance(each := getattr(policies, name), type)),
    "The Agentic Rollout Library": (
        *(AgenticRolloutConfig, ReActAgent, CodingAgent, CheckAnswer),
        *(OpenAIFunction, AnthropicFunction, LLMConfig, Retries),
    ),
    "Sandboxes": (LocalSandbox, SandboxLimits),
    "Sandboxes in Docker": (DockerMachine, DockerConfig),
    "Sandboxes in Kubernetes": (KubernetesCluster, KubernetesConfig),
    "Agent loops": (RolloutAgentLoop,),
    "Workflows and graders": (AgentWorkflowConfig, GraderConfig, ConcurrencyConfig),
}
"""The classes with settings, by heading."""

NAMES = {"serve": "`serve`", "gateway": "gateway"}


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for group in dict.fromkeys(option.group for option in OPTIONS.values()):
        parts += [f"\n### {group}\n\n", "| option | variable | default | what it does | of |\n|---|---|---|---|---|\n"]
        parts += [row(option) for option in OPTIONS.values() if option.group == group]
    parts += [COMMANDS, *commands()]
    parts += ["\n## Other variables\n\n| variable | what it does |\n|---|---|\n"]
    parts += [_row(f"`{name}`", text) for name, text in VARIABLES.items()]
    parts += ["\n## Classes\n"]
    for heading, classes in CLASSES.items():
        parts += [f"\n### {heading}\n", *(text for each in classes for text in class_settings(each))]
    return "".join(parts)


def row(option: Option) -> str:
    """Return the row of an option."""
    flags = option.flags[:-1] if option.switch else option.flags
    texts = [f"`{flag}`" for flag in flags[:-1]] + [
        f"`{flag} {option.metavar}`".replace(" `", "`") for flag in flags[-1:]
    ]
    facts = [option.help, f"{option.range}." if option.range else "", "May be repeated." if option.several else ""]
    return _row(
        ", ".join(texts),
        f"`{option.variable}`",
        f"`{option.default}`" if option.default else "",
        " ".join(filter(None, facts)),
        ", ".join(NAMES[command] for command in option.commands),
    )


def leaves(command: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all commands but serve, each with its name, such as ctl drain."""
    command = command if command is not None else get_command(app)
    for part, each in getattr(command, "commands", {}).items():
        if (name, part) != ("", "serve"):
            yield from leaves(each, f"{name} {part}".strip())
    if not hasattr(command, "commands"):
        yield name, command


def commands() -> Iterator[str]:
    """Yield the tables of the commands. Equal options of several commands are in one table."""
    known: dict[tuple[str, str, str], list[str]] = {}
    for name, command in leaves():
        for parameter in command.params:
            if parameter.hidden:
                continue
            known.setdefault(_option(parameter), []).append(name)
    head = "| option | default | what it does |"
    shared = {option: names for option, names in known.items() if len(names) > 1}
    yield f"\n### Several commands\n\n{head} of |\n|---|---|---|---|\n"
    for option, names in shared.items():
        yield _row(*option, ", ".join(f"`{name}`" for name in names))
    for name, _ in leaves():
        own = [option for option, names in known.items() if names == [name]]
        if own:
            yield f"\n### {name}\n\n{head}\n|---|---|---|\n"
            yield from (_row(*option) for option in own)


def _option(parameter: Any) -> tuple[str, str, str]:
    """Return the cells of an option or an argument."""
    value = parameter.metavar or ""
    if parameter.param_type_name == "argument":
        names = f"`{value.strip('[]') or parameter.name.upper()}`"
    else:
        *first, last = parameter.opts
        last = f"{last} {'' if parameter.is_flag else value}".strip()
        names = ", ".join(f"`{flag}`" for flag in (*first, last))
    default = parameter.default
    empty = default is None or default is False or default in ("", [], ())
    text = " ".join((parameter.help or "").replace("[required]", "Required.").split())
    return names, "" if empty else f"`{default}`", text


def class_settings(kind: type) -> Iterator[str]:
    """Yield what a class says of itself, and the table of its fields or of the arguments of its constructor."""
    text, described, errors = sections(inspect.getdoc(kind) or "")
    yield f"\n#### {kind.__name__}\n\n{text}\n"
    settings = list(fields(kind)) if _has_fields(kind) else list(arguments(kind, described))
    if not settings:
        return
    with_text = any(text for *_, text in settings)
    head = "| name | default | what it does |\n|---|---|---|\n" if with_text else "| argument | default |\n|---|---|\n"
    yield f"\n{head}"
    for field, default, text in settings:
        yield _row(f"`{field}`", default, text) if with_text else _row(f"`{field}`", default)
    if errors:
        yield "\nIt raises\n\n" + "".join(f"- `{name}`: {why}\n" for name, why in errors.items())


def _has_fields(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or inspect.isabstract(kind) or issubclass(kind, BaseModel)


def fields(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield the public fields of a class and of its bases, with their defaults and docstrings."""
    defaults: dict[str, Any] = {}
    if dataclasses.is_dataclass(kind):
        defaults = {each.name: each.default for each in dataclasses.fields(kind)}
    elif issubclass(kind, BaseModel):
        defaults = {name: None if each.is_required() else each.default for name, each in kind.model_fields.items()}
    for each in reversed(kind.__mro__):
        if not each.__module__.startswith("osmosis_grpc."):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(body, ast.ClassDef)
        texts = docstrings(body)
        for statement in body.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name = statement.target.id
                if not name.startswith("_") and name != "model_config":
                    value = defaults[name] if name in defaults else getattr(kind, name, None)
                    yield name, _default(value), _text(texts.get(name, ""))


def docstrings(body: ast.ClassDef) -> Mapping[str, str]:
    """Return the docstrings that follow the fields of a class."""
    found = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(text, str):
            found[before.target.id] = text
    return found


def sections(docstring: str) -> tuple[str, Mapping[str, str], Mapping[str, str]]:
    """Return the text of a docstring, its arguments and the errors that it raises, each with its description."""
    text, _, raises = docstring.partition("\nRaises:\n")
    text, _, args = text.partition("\nArgs:\n")
    found = []
    for part in (args, raises):
        entries = re.split(r"^ {4}(?=\S)", part, flags=re.MULTILINE)[1:]
        found.append({name: _text(rest) for name, _, rest in (entry.partition(":") for entry in entries)})
    return text.strip(), found[0], found[1]


def arguments(kind: type, described: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the arguments of a constructor with their descriptions in the docstring of the class."""
    for name, each in inspect.signature(kind).parameters.items():
        if each.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            default = "" if each.default is inspect.Parameter.empty else _default(each.default)
            yield name, default, described.get(name, "")


def _default(value: object) -> str:
    empty = value is None or value in (dataclasses.MISSING, PydanticUndefined, "", ())
    return "" if empty else f"`{value!r}`"


def _text(text: str) -> str:
    """Return a docstring as one paragraph."""
    return " ".join(text.split())


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def main(check: bool) -> int:
    """Write the page, or compare it."""
    if not check:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        print(f"{PAGE.name} is not what the options say: run python scripts/settings.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
