"""Programs that run as agents: how to start them, and with which files and variables. A preset is a TOML file:

    command = ["claude", "-p", "$prompt"]     # the words of the command; a preset's have $prompt
    install = "npm install -g ..."            # shown if the program is missing; each preset has it
    [environment]                             # its variables
    ANTHROPIC_MODEL = "$model"
    [files]                                   # files below $home or $work that exist before it starts
    "$home/.config/tool.json" = '{"url": "$base_url"}'

    [box]                                     # it runs in a container; the keys are the fields of DockerConfig
    image = "my-image"

Your own file can extend a preset: begin it with `extends = "claude-code"`. It can also have `setup` and `reward`, two
commands that run in the program's folder before and after the program. In all texts, these values are replaced:

    $prompt     the texts of the rollout's messages      $model     the name of the policy
    $base_url   the rollout's base URL                   $home      the private HOME of the program
    $api_key    the rollout's key                        $work      the folder that it works in
    $context    the tokens of the model's context        $compact   80 % of them
    $reply      a quarter of them, at most 32,000        $recent    a quarter of them
    $share      $compact / 1,048,576, the context that Gemini's program assumes
"""

import os
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Message

PRESETS = Path(__file__).parent / "presets"
DEFAULT_CONTEXT = 200_000
FILES = "files"
"""The key of the request's metadata that has files for the program: their texts, by path below its folder."""
_KEYS = ("command", "install", "environment", "files", "setup", "reward", "extends", "box")


_OF_SHELLS = {"|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1"}
"""Words that mean something only to a shell."""
_INTERPRETERS = re.compile("python|pypy|[a-z]*sh$")
"""Programs whose options -c and -m take a script or the name of a module, not a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that runs once for each rollout."""

    command: tuple[str, ...]
    """The words of the command. Without a preset, the program reads the task as JSON from stdin."""
    name: str = ""
    """The name of the agent; empty for the name of the script in the command."""
    preset: bool = False
    install: str = ""
    """How to install the program, for the error if it is missing."""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    """A command that prepares the folder of the program."""
    reward: tuple[str, ...] = ()
    """A command that runs after the program and prints the reward or writes the result file."""
    context: int = DEFAULT_CONTEXT
    """How many tokens the model's context has. Programs compact their history before it is full."""
    box: Mapping[str, Any] = field(default_factory=dict)
    """The fields of its box, as in DockerConfig. If it is empty, the program runs as the server's user."""
    exit_code_counts: bool = False
    """Whether an exit code other than 0 is a failure even if there is a result file."""


def preset_names() -> list[str]:
    """Return the names of the presets."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_program(name: str) -> Program:
    """Return the program of a preset.

    Args:
        name: The name of a preset, or the path of a TOML file.

    Raises:
        ValueError: There is no such preset, or the file is invalid. The message names the key.
    """
    path = Path(name) if name.endswith(".toml") else PRESETS / f"{name}.toml"
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        if name.endswith(".toml"):
            raise ValueError(f"there is no file {name!r}") from None
        known = ", ".join(preset_names())
        raise ValueError(f"there is no preset {name!r}; name one of {known}, or a .toml file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    unknown = sorted(table.keys() - set(_KEYS))
    if unknown:
        raise ValueError(f"{path}: {unknown[0]} is no key of a program; the keys are {', '.join(_KEYS)}")
    try:
        base = load_program(str(table["extends"])) if table.get("extends") else Program(command=())
    except ValueError as error:
        raise ValueError(f"{path}: extends: {error}") from None
    program = Program(
        name=path.stem,
        preset=True,
        command=_words(table, "command", path) or base.command,
        install=str(table.get("install") or base.install),
        environment={**base.environment, **_texts(table, "environment", path)},
        files={**base.files, **_texts(table, "files", path)},
        setup=_words(table, "setup", path) or base.setup,
        reward=_words(table, "reward", path) or base.reward,
        box={**base.box, **_box(table, path)},
    )
    if not program.command:
        raise ValueError(f"{path}: command is missing: name the words of the program's command")
    return program


def context_values(tokens: int) -> dict[str, str]:
    """Return the values that depend on the size of the model's context, such as $compact."""
    return {
        "context": str(tokens),
        "compact": str(tokens * 4 // 5),
        "reply": str(min(tokens // 4, 32_000)),
        "recent": str(tokens // 4),
        "share": f"{tokens * 0.8 / 2**20:.6f}",
    }


def resolved(words: list[str], folder: Path, path: str) -> tuple[list[str], str]:
    """Return the absolute command, and the default name of its agent. Raises ValueError."""
    if not words:
        raise ValueError("the command is empty")
    program, arguments = words[0], words[1:]
    found = str(folder / program) if "/" in program else shutil.which(program, path=path)
    if found is None or not Path(found).exists():
        hint = f"; write: python {program}" if program.endswith(".py") and _exists(folder, program) else ""
        raise ValueError(f"there is no program {program!r}{hint}")
    if not os.access(found, os.X_OK) or Path(found).is_dir():
        raise ValueError(f"the program {program!r} is not executable")
    shell = next((word for word in arguments if word in _OF_SHELLS), "")
    if shell:
        raise ValueError(f"no shell runs the command, so {shell!r} has no effect; write: sh -c '...'")
    script = arguments[0] if arguments and _INTERPRETERS.match(Path(program).name) else "-"
    if not script.startswith("-") and not _exists(folder, script):
        raise ValueError(f"there is no file {script!r} in {folder}")
    named = program
    before = ""
    for index, word in enumerate(arguments):
        if before in ("-c", "-m") and _INTERPRETERS.match(Path(program).name):  # not a file
            named = word if before == "-m" and named == program else named
        elif _exists(folder, word):
            arguments[index] = str(folder / word)
            named = word if named == program else named
        before = word
    return [found, *arguments], Path(named).name.removesuffix(".py")


def _exists(folder: Path, word: str) -> bool:
    """Return whether a word names a file or folder; False if it is too long for a file name."""
    try:
        return bool(word) and (folder / word).exists()
    except OSError:
        return False


def filled(text: str, values: Mapping[str, str]) -> str:
    """Replace the values in a text of a program."""
    return Template(text).safe_substitute(values)


def prompt_of(messages: Sequence[Message]) -> str:
    """Join the texts of a rollout's messages to a prompt. Raises InvalidArgument if a message cannot be part of one."""
    texts = []
    for index, message in enumerate(messages):
        if message.get("role") not in ("system", "developer", "user"):
            raise InvalidArgument(
                f"spec.messages[{index}].role", f"is {message.get('role')!r}; a program gets a prompt only"
            )
        content = message.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
        for at, part in enumerate(parts):
            if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
                raise InvalidArgument(
                    f"spec.messages[{index}].content[{at}]", "is no text; a program gets a prompt only"
                )
            texts.append(part["text"])
    prompt = "\n\n".join(texts)
    return f"\n{prompt}" if prompt.startswith("-") else prompt  # else programs would take it for an option


def files_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of a request by their relative paths. Raises InvalidArgument for a path outside the folder."""
    files = metadata.get(FILES) or {}
    if not isinstance(files, Mapping):
        raise InvalidArgument(
            f"spec.metadata.{FILES}", f"is a {type(files).__name__}, not an object of paths and texts"
        )
    for name, text in files.items():
        place = Path(str(name))
        if place.is_absolute() or ".." in place.parts or not place.parts:
            raise InvalidArgument(f"spec.metadata.{FILES}", f"{name!r:.200} is no path below the program's folder")
        if not isinstance(text, str):
            raise InvalidArgument(f"spec.metadata.{FILES}.{name}", f"is a {type(text).__name__}, not a text")
    return dict(files)


def _box(table: Mapping[str, Any], path: Path) -> dict[str, Any]:
    box = table.get("box", {})
    if not isinstance(box, dict):
        raise ValueError(f"{path}: [box] is no table")
    return box


def _words(table: Mapping[str, Any], key: str, path: Path) -> tuple[str, ...]:
    words = table.get(key, [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f'{path}: {key} is no list of words, for example ["python", "grade.py"]')
    return tuple(words)


def _texts(table: Mapping[str, Any], key: str, path: Path) -> dict[str, str]:
    texts = table.get(key, {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError(f"{path}: [{key}] is no table of texts")
    return texts
