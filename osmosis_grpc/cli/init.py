"""The init command: writes a project with an agent, a reward, a dataset and the settings of its tools."""

import os
import re
import shlex
from importlib.resources import files
from pathlib import Path

from osmosis_grpc.cli.screen import program
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.serve.json_output import records, usage_error

TEMPLATES = {"minimal": "server", "tools": "server", "openai": "server,openai"}
"""The templates, and the extras of osmosis-grpc that each needs."""
NEEDED = {"openai": "openai"}
"""The templates whose agents import a package that the command does not need, and this package."""
ENDING = ".template"
"""Ends the names of the files in a template, so that no tool takes them for modules of this package."""
_INSTALL = "Install the package that the agent uses:\n\n    pip install {}\n\n"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


def run_init(target: str, template: str, *, force: bool, json: bool) -> int:
    """Write a project into a folder, and return the exit code. A folder that is not empty is refused."""
    if template not in TEMPLATES:
        usage_error("init", f"--template: there is no template {printable(template)}; there are {', '.join(TEMPLATES)}")
    folder = Path(target)
    name = folder.resolve().name
    if not target or not _NAME.fullmatch(name):
        usage_error(
            "init",
            f"{printable(name if target else '')!r} cannot name a project; use letters, digits and - _ . between them",
        )
    texts = _texts(template, name)
    _write(folder, texts, force=force)
    shown = "" if target == "." else f"cd {shlex.quote(target)} && "
    name_of_program = program()
    if os.sep in name_of_program:  # it is relative to the folder of now
        name_of_program = shlex.quote(os.path.abspath(name_of_program))
    needed = NEEDED.get(template)
    commands = [
        *([f"pip install {needed}"] if needed else []),
        f"{name_of_program} validate --run -m agent:agent_loop",
        f"{name_of_program} test -m agent:agent_loop -d data.jsonl --model mock:tools",
        f"{name_of_program} serve -m agent:agent_loop",
    ]
    with records(json) as out:
        out.write("made", folder=str(folder), name=name, template=template, files=sorted(texts), commands=commands)
        out.say(printable(f"{target} has {', '.join(sorted(texts))}"))
        out.say("next:")
        for command in (f"{shown}{commands[0]}", *commands[1:]):
            out.say(printable(f"  {command}"))
    return 0


def _texts(template: str, name: str) -> dict[str, str]:
    found = {}
    root = files("osmosis_grpc.cli") / "templates"
    for part in ("shared", template):
        for source in (root / part).iterdir():
            if source.name.endswith(ENDING):
                text = source.read_text(encoding="utf-8")
                text = text.replace("{{name}}", name).replace("{{extras}}", TEMPLATES[template])
                text = text.replace("{{install}}", _INSTALL.format(NEEDED[template]) if template in NEEDED else "")
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
