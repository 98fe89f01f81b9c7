"""The init command: writes a project with an agent, a reward and a dataset, or a trainer for an environment."""

import json as json_texts
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from osmosis_grpc.cli.screen import program
from osmosis_grpc.environments import KINDS, EnvironmentSpec
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.serve.json_output import records, usage_error

TEMPLATES = {"minimal": "server", "tools": "server", "openai": "server,openai"}
"""The templates, with the extras of osmosis-grpc that each needs."""
NEEDED = {"openai": "openai"}
"""The templates whose agent imports a further package, with the name of the package."""
ENDING = ".template"
"""The suffix of files in a template, so that no tool takes them for modules of this package."""
_INSTALL = "Install the package that the agent uses:\n\n    pip install {}\n\n"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


def run_init(target: str, template: str, env: str | None = None, *, force: bool, json: bool) -> int:
    """Write a project into a folder, and return the exit code. A folder that is not empty is refused."""
    if template not in TEMPLATES:
        usage_error("init", f"--template: there is no template {printable(template)}; there are {', '.join(TEMPLATES)}")
    spec = None if env is None else _spec(env)
    folder = Path(target)
    name = folder.resolve().name
    if not target or not _NAME.fullmatch(name):
        usage_error(
            "init",
            f"{printable(name if target else '')!r} cannot name a project; use letters, digits and - _ . between them",
        )
    project = _of_agent(name, template) if spec is None else _of_environment(name, spec)
    texts = _texts(project)
    _write(folder, texts, force=force)
    shown = "" if target == "." else f"cd {shlex.quote(target)} && "
    name_of_program = program()
    if os.sep in name_of_program:  # a path relative to the current folder, which the commands leave
        name_of_program = shlex.quote(os.path.abspath(name_of_program))
    commands = [re.sub(r"^osmosis-grpc\b", lambda _: name_of_program, command) for command in project.commands]
    with records(json) as out:
        made = {"template": template} if spec is None else {"env": str(spec)}
        out.write("made", folder=str(folder), name=name, **made, files=sorted(texts), commands=commands)
        out.say(printable(f"{target} has {', '.join(sorted(texts))}"))
        out.say("next:")
        for command in (f"{shown}{commands[0]}", *commands[1:]):
            out.say(printable(f"  {command}"))
    return 0


def _spec(text: str) -> EnvironmentSpec:
    try:
        spec = EnvironmentSpec.parse(text)
    except ValueError as error:
        usage_error("init", f"--env: {printable(str(error))}")
    if spec.kind not in KINDS:
        usage_error("init", f"--env: there is no kind {printable(spec.kind)}; there are {', '.join(KINDS)}")
    return spec


@dataclass(frozen=True, slots=True)
class _Project:
    parts: tuple[str, ...]
    """The template folders that make up the project."""
    words: Mapping[str, str]
    """The values that replace {{...}} in the files."""
    commands: Sequence[str]


def _of_agent(name: str, template: str) -> _Project:
    needed = NEEDED.get(template)
    words = {
        "name": name,
        "description": "An agent for remote rollouts",
        "extras": TEMPLATES[template],
        "modules": '"agent", "rewards"',
        "install": _INSTALL.format(needed) if needed else "",
    }
    commands = [
        *([f"pip install {needed}"] if needed else []),
        "osmosis-grpc validate --run -m agent:agent_loop",
        "osmosis-grpc test -m agent:agent_loop -d data.jsonl --model mock:tools",
        "osmosis-grpc serve -m agent:agent_loop",
    ]
    return _Project(("shared", "agents", template), words, commands)


def _of_environment(name: str, spec: EnvironmentSpec) -> _Project:
    extras = f"server,{spec.kind}"
    commands = [
        f"pip install 'osmosis-grpc[{extras}]'",
        f"osmosis-grpc test --env {shlex.quote(str(spec))} --model mock:echo --limit 3",
        "osmosis-grpc serve --config server.toml",
        "python train.py",
    ]
    words = {
        "name": name,
        "description": "Trains on an environment",
        "extras": extras,
        "modules": '"train"',
        "env": json_texts.dumps(str(spec), ensure_ascii=False),
        **dict(zip(("install", "test", "serve", "train"), commands, strict=True)),
    }
    return _Project(("shared", "env"), words, commands)


def _texts(project: _Project) -> dict[str, str]:
    found = {}
    root = files("osmosis_grpc.cli") / "templates"
    for part in project.parts:
        for source in (root / part).iterdir():
            if source.name.endswith(ENDING):
                text = source.read_text(encoding="utf-8")
                for word, value in project.words.items():
                    text = text.replace("{{" + word + "}}", value)
                found[source.name.removesuffix(ENDING)] = text
    return found


def _write(folder: Path, texts: dict[str, str], *, force: bool) -> None:
    """Write the files. A folder that cannot be used ends the command with exit code 2."""
    try:
        if not force and folder.exists() and any(folder.iterdir()):
            usage_error(
                "init",
                f"the folder {printable(str(folder))} is not empty; name another one, or overwrite "
                f"{', '.join(sorted(texts))} in it with --force",
            )
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        usage_error("init", f"{printable(str(error))}; name another folder")
