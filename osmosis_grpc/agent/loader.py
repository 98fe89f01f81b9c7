"""Finds the agent loops that a text "module:attribute" names."""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from osmosis_grpc.agent.loop import RolloutAgentLoop
from osmosis_grpc.agent.missing_names import missing_module, of_the_sdk
from osmosis_grpc.agent.validator import one_line, place_of_error
from osmosis_grpc.errors import install


class LoadError(ValueError):
    """A specification does not lead to an agent loop. The text is one line and says what to change.

    If the user's code raised an exception, the text names its file and line, and `__cause__` is the exception.
    """


def load_object(spec: str, suggest: Callable[[Any], str] | None = None) -> Any:
    """Return the object that "module:attribute" names. Raises LoadError. The working directory is put on sys.path.

    `suggest` returns a text about an object that lacks the attribute. By default, it names the agent loops.
    """
    module_name, colon, attribute = spec.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        raise LoadError(f"{spec!r} names a file; name the module: {_as_module(module_name, attribute or 'ATTRIBUTE')}")
    if not colon or not module_name or not attribute:
        before, _, last = module_name.rpartition(".")
        meant = f"; {before}:{last} is" if before and not colon else ", for example server:agent_loop"
        raise LoadError(f"{spec!r} is not MODULE:ATTRIBUTE{meant}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with _own_code(spec):
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
                raise LoadError(f"there is no module {error.name!r} in {os.getcwd()} or on the path") from error
            raise
        for part in attribute.split("."):
            if not hasattr(found, part):
                name = getattr(found, "__name__", type(found).__name__)
                raise LoadError(f"{name} has no attribute {part!r}{(suggest or _suggest)(found)}")
            found = getattr(found, part)
    return found


@contextlib.contextmanager
def _own_code(spec: str) -> Iterator[None]:
    """Turn every exception of the user's code, except KeyboardInterrupt, into a LoadError with a text of one line."""
    try:
        yield
    except (LoadError, KeyboardInterrupt):
        raise
    except BaseException as error:
        text = None
        if isinstance(error, ModuleNotFoundError):
            hint = f"{one_line(error)}; install its package with {install('PACKAGE')}, or correct the import"
            text = missing_module(error.name or "") or hint
        file, line = place_of_error(error)
        at = "; it is imported at" if text and "pip install" in text else " at"  # a command ends the text
        raise LoadError(f"{spec}: {text or one_line(error)}" + (f"{at} {file}:{line}" if file else "")) from error


def load_agent_loops(specs: Iterable[str]) -> list[RolloutAgentLoop]:
    """Return the agent loops of several specifications.

    Each specification names an agent loop, an agent loop class, or a list of loops and classes. Raises LoadError, also
    if two loops have the same name.
    """
    loops: list[RolloutAgentLoop] = []
    for spec in specs:
        found = load_object(spec)
        for item in found if isinstance(found, list | tuple) else [found]:
            if isinstance(item, type) and issubclass(item, RolloutAgentLoop):
                with _own_code(spec):
                    item = item()
            if not isinstance(item, RolloutAgentLoop):
                cls = item if isinstance(item, type) else type(item)
                reason = of_the_sdk(cls) or f"it is a {type(item).__name__}"
                raise LoadError(f"{spec} is not a RolloutAgentLoop: {reason}")
            loops.append(item)
    names = [loop.name for loop in loops]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise LoadError(f"two agent loops are named {', '.join(twice)}")
    return loops


def _suggest(found: Any) -> str:
    """Return a text with the agent loops of a module or an object, and the module's file."""
    loops = [name for name, value in getattr(found, "__dict__", {}).items() if _is_loop(value, found)]
    file = getattr(found, "__file__", None)
    loops_found = f"; it has: {', '.join(sorted(loops))}" if loops else ", and no agent loop"
    return loops_found + (f" ({file})" if isinstance(file, str) else "")


def _as_module(path: str, attribute: str) -> str:
    """Return the MODULE:ATTRIBUTE for a file. If the file is not below the current folder, also name its folder."""
    inner = os.path.relpath(path).removesuffix(".py")
    if not inner.startswith(os.pardir):
        return f"{inner.replace(os.sep, '.')}:{attribute}"
    return f"{os.path.basename(inner)}:{attribute}, from the folder {os.path.dirname(path)}"


def _is_loop(value: Any, module: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, RolloutAgentLoop) and value.__module__ == getattr(module, "__name__", None)
    return isinstance(value, RolloutAgentLoop)
