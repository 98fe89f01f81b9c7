"""Loads agents by their specification: MODULE:ATTRIBUTE, the file of a workflow, or the module of a workflow."""

import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from osmosis_grpc.agent.config_sources import ConfigSources, configured, configured_grader
from osmosis_grpc.agent.grader import Grader
from osmosis_grpc.agent.import_hints import missing_import, of_the_sdk, use_local_prices
from osmosis_grpc.agent.loop import RolloutAgentLoop
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.agent.validator import one_line, place_of_error
from osmosis_grpc.agent.workflow import AgentWorkflow, GraderConfig
from osmosis_grpc.agent.workflow_files import (
    DiscoveryError,
    EntryPointError,
    FoundWorkflow,
    check_path,
    discover,
    import_file,
    import_newest,
    is_path,
)


class LoadError(ValueError):
    """A specification does not name an agent loop. The text is one line with advice.

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
        raise LoadError(f"{spec!r} is not MODULE:ATTRIBUTE, for example server:agent_loop")
    with _own_code(spec):
        found: Any = _module(module_name)
        for part in attribute.split("."):
            if not hasattr(found, part):
                name = getattr(found, "__name__", type(found).__name__)
                raise LoadError(f"{name} has no attribute {part!r}{(suggest or _suggest)(found)}")
            found = getattr(found, part)
    return found


def _module(name: str) -> ModuleType:
    _put_folder_on_path()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            where = f"in {os.getcwd()} or on the path{_near(error.name)}"
            raise LoadError(f"there is no module {error.name!r} {where}") from error
        raise


def _near(name: str) -> str:
    """Return a question about a module of this folder with a similar name; empty without one."""
    package, _, last = name.rpartition(".")
    folder = Path(*package.split(".")) if package else Path()
    found = [path.stem for path in folder.glob("*.py")] + [path.parent.name for path in folder.glob("*/__init__.py")]
    near = difflib.get_close_matches(last, sorted(found), 1, 0.6)
    return f"; do you mean {package}{'.' * bool(package)}{near[0]}?" if near else ""


def _put_folder_on_path() -> None:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    import_newest(Path.cwd())


@contextlib.contextmanager
def _own_code(spec: str) -> Iterator[None]:
    """Turn every exception of the user's code, except KeyboardInterrupt, into a LoadError with a text of one line."""
    use_local_prices()  # the user's code may import litellm before this package does
    try:
        yield
    except (LoadError, KeyboardInterrupt):
        raise
    except BaseException as error:
        text = None
        if isinstance(error, ModuleNotFoundError):
            text = missing_import(error)
        file, line = place_of_error(error)
        text = text or one_line(error)
        at = "; it is imported at" if "pip install" in text else " at"  # the text ends with a command
        raise LoadError(f"{spec}: {text}" + (f"{at} {file}:{line}" if file else "")) from error


def load_items(spec: str) -> list[Any]:
    """Return what a specification names, unchecked: the items of a list, or one object.

    A workflow is a FoundWorkflow: for the path of a file, for a module without ":ATTRIBUTE", and for the class of a
    workflow. Raises LoadError.
    """
    if is_path(spec) and ":" not in spec:
        return [_workflow_of_file(spec)]
    module_name, colon, _ = spec.partition(":")
    if module_name and not colon:
        return [_workflow_of_module(module_name)]
    found = load_object(spec)
    return [_with_module(item, spec) for item in (found if isinstance(found, list | tuple) else [found])]


def load_agents(specs: Iterable[str], sources: ConfigSources | None = None) -> list[RolloutAgentLoop | Runnable]:
    """Return the agents of several specifications.

    Each specification names an agent loop, a workflow, the class of one of them, or a list of these. A workflow gets
    the values of `sources` into its configuration. Raises LoadError, also if two agents have the same name.
    """
    return as_agents(load_configured(specs, sources))


def load_configured(specs: Iterable[str], sources: ConfigSources | None = None) -> list[Any]:
    """Return agent loops, Runnables and FoundWorkflows. The values of `sources` are in the configurations.

    Raises LoadError.
    """
    items: list[Any] = []
    for spec in specs:
        items += [_agent(item, spec) for item in load_items(spec)]
    return configure(items, sources)


def as_agents(items: Iterable[Any]) -> list[RolloutAgentLoop | Runnable]:
    """Return the items of load_configured() as agents. Raises LoadError for wrong names, and for equal ones."""
    agents = []
    for item in items:
        with _own_code(item.name):
            agents.append(item.runnable() if isinstance(item, FoundWorkflow) else item)
    names = [agent.name for agent in agents]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise LoadError(f"two agent loops are named {', '.join(twice)}")
    return agents


def configure(items: Sequence[Any], sources: ConfigSources | None) -> list[Any]:
    """Return items of load_items() with the values of `sources` in the configurations of workflows.

    Raises LoadError, also for values without a workflow.
    """
    found = [item for item in items if isinstance(item, FoundWorkflow)]
    if sources is None:
        return list(items)
    try:
        ready = iter(configured(found, sources, load_object))
    except LoadError:
        raise
    except ValueError as error:
        raise LoadError(str(error)) from None
    return [next(ready) if isinstance(item, FoundWorkflow) else item for item in items]


def load_grader(spec: str, values: Sequence[str] = ()) -> tuple[type[Grader[Any]], GraderConfig | None]:
    """Return the grader that MODULE:CLASS names, and the configuration of its module with KEY=VALUE texts in it.

    Raises LoadError.
    """
    try:
        return configured_grader(spec, values, lambda text: load_object(text, _suggest_graders))
    except LoadError:
        raise
    except ValueError as error:
        raise LoadError(str(error)) from None


def _agent(item: Any, spec: str) -> Any:
    if isinstance(item, type) and (issubclass(item, RolloutAgentLoop) or hasattr(item, "as_runnable")):
        with _own_code(spec):
            item = item()
    if hasattr(item, "as_runnable"):
        item = item.as_runnable()
    if isinstance(item, RolloutAgentLoop | FoundWorkflow) or is_runnable(item):
        return item
    cls = item if isinstance(item, type) else type(item)
    reason = of_the_sdk(cls) or f"it is a {type(item).__name__}"
    raise LoadError(f"{spec} is not a RolloutAgentLoop or an AgentWorkflow: {reason}")


def is_runnable(item: object) -> bool:
    """Return whether an object has the methods of a Runnable, which the engine hosts as it is."""
    methods = (getattr(item, name, None) for name in ("tools", "run", "ended"))  # the tools of a loop are no method
    return not isinstance(item, type) and hasattr(item, "name") and all(map(callable, methods))


def _with_module(item: Any, spec: str) -> Any:
    if not isinstance(item, type) or not issubclass(item, AgentWorkflow):
        return item
    try:
        return discover(sys.modules[spec.partition(":")[0]], spec, item)
    except DiscoveryError as error:
        raise LoadError(str(error)) from None


def _workflow_of_file(spec: str) -> Any:
    try:
        path = check_path(spec, Path.cwd())
        _put_folder_on_path()
        with _own_code(spec):
            module = import_file(path)
        return discover(module, spec)
    except EntryPointError as error:
        raise LoadError(f"{error}") from None
    except DiscoveryError as error:
        hint = _instead(module, _as_module(spec, "ATTRIBUTE"))
        raise LoadError(f"{error}{hint}") from None


def _workflow_of_module(name: str) -> Any:
    before, _, last = name.rpartition(".")
    meant = f"; {before}:{last} is" if before else ", for example server:agent_loop"
    with _own_code(name):
        try:
            module = _module(name)
        except LoadError as error:
            raise LoadError(f"{name!r} is not MODULE:ATTRIBUTE{meant}; and {error}") from error
        try:
            return discover(module, name)
        except DiscoveryError as error:
            hint = _instead(module, f"{name}:ATTRIBUTE")
            raise LoadError(f"{name!r} is not MODULE:ATTRIBUTE, and has no workflow: {error}{hint}") from None


def _instead(module: ModuleType, spec: str) -> str:
    """Return a hint for a module that has agent loops, and no workflow."""
    loops = {name: value for name, value in vars(module).items() if _is_loop(value, module)}
    instances = [name for name, value in loops.items() if not isinstance(value, type)]
    named = spec.replace("ATTRIBUTE", sorted(instances or loops)[0]) if loops else ""
    return f"; it has an agent loop: name it as {named}" if named else ""


def _suggest(module: Any) -> str:
    """Return a text with the agent loops and workflows of a module or an object, and the module's file."""
    file = getattr(module, "__file__", None)
    names = _listed(
        module, lambda value: _is_loop(value, module) or _is_below(value, AgentWorkflow) or is_runnable(value)
    )
    return (names or ", and no agent loop") + (f" ({file})" if isinstance(file, str) else "")


def _suggest_graders(module: Any) -> str:
    return _listed(module, lambda value: _is_below(value, Grader)) or ", and no grader"


def _listed(module: Any, fits: Callable[[Any], bool]) -> str:
    names = sorted(name for name, value in getattr(module, "__dict__", {}).items() if fits(value))
    return f"; it has: {', '.join(names)}" if names else ""


def _is_below(value: Any, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base) and value is not base


def _as_module(path: str, attribute: str) -> str:
    inner = os.path.relpath(path).removesuffix(".py")
    if not inner.startswith(os.pardir):
        return f"{inner.replace(os.sep, '.')}:{attribute}"
    return f"{os.path.basename(inner)}:{attribute}, from the folder {os.path.dirname(path)}"


def _is_loop(value: Any, module: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, RolloutAgentLoop) and value.__module__ == getattr(module, "__name__", None)
    return isinstance(value, RolloutAgentLoop)
