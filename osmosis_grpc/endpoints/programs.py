"""Programs that run as agents: how each is started, and where its parts are. A preset describes one in a TOML file.

    command = ["claude", "-p", "$prompt"]     # the words of the command
    install = "npm install -g ..."            # shown if the program is missing
    [environment]                             # its variables
    ANTHROPIC_MODEL = "$model"
    [files]                                   # files below $home or $work that exist before it starts
    "$home/.config/tool.json" = '{"url": "$base_url"}'

    [box]                                     # it runs in a container; the keys are the fields of DockerConfig
    image = "my-image"

A file of your own can begin with `extends = "claude-code"`, and add `setup` and `reward`, two commands that run in the
folder of the program before and after it. These values are replaced in all of them:

    $prompt     the texts of the rollout's messages      $model     the name of the policy
    $base_url   the rollout's base URL                   $home      the private HOME of the program
    $api_key    the rollout's key                        $work      the folder that it works in
    $context    the tokens of the model's context        $compact   80 % of them
    $reply      a quarter of them, at most 32,000        $recent    a quarter of them
    $share      80 % of them as a share of 1,048,576 tokens, which Gemini's program takes for the context
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
"""The key of a request's metadata with files for the program, by their paths below its folder."""
_KEYS = ("command", "install", "environment", "files", "setup", "reward", "extends", "box")


_OF_SHELLS = {"|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1"}
"""Words that only a shell understands."""
_INTERPRETERS = re.compile("python|pypy|[a-z]*sh$")
"""The names of programs whose options -c and -m take a script or the name of a module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that runs once for each rollout."""

    command: tuple[str, ...]
    """Its words. Without a preset, the program reads the task as JSON from stdin."""
    name: str = ""
    """The name of the agent; empty for the name of the script in the command."""
    preset: bool = False
    install: str = ""
    """How to install it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    """A command that prepares the folder of the program."""
    reward: tuple[str, ...] = ()
    """A command that prints the reward, or writes the result file, after the program has ended."""
    context: int = DEFAULT_CONTEXT
    """The tokens of the model's context. Programs that compact their history do it before it is full."""
    box: Mapping[str, Any] = field(default_factory=dict)
    """The fields of its box, see DockerConfig; empty if it runs as the server's user."""
    exit_code_counts: bool = False
    """Whether another exit code than 0 is a failure although there is a result file."""


def preset_names() -> list[str]:
    """Return the names of the presets."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_program(name: str) -> Program:
    """Return the program of a preset.

    Args:
        name: The name of a preset, or the path of a TOML file.

    Raises:
        ValueError: There is no such preset, or the file is wrong. The message names the key.
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
    """Return the values about a model's context of so many tokens."""
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
        raise ValueError(f"there is no program {program!r}")
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
        if before in ("-c", "-m") and _INTERPRETERS.match(Path(program).name):  # a script or a module, not a file
            named = word if before == "-m" and named == program else named
        elif _exists(folder, word):
            arguments[index] = str(folder / word)
            named = word if named == program else named
        before = word
    return [found, *arguments], Path(named).name.removesuffix(".py")


def _exists(folder: Path, word: str) -> bool:
    """Return whether a word names a file or folder. A word that is too long for a name does not."""
    try:
        return bool(word) and (folder / word).exists()
    except OSError:
        return False


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text of a program with its values."""
    return Template(text).safe_substitute(values)


def prompt_of(messages: Sequence[Message]) -> str:
    """Return the texts of a rollout's messages. Raises InvalidArgument for what cannot be a prompt."""
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
    return f"\n{prompt}" if prompt.startswith("-") else prompt  # programs would take it for an option


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
