"""Options of the Agentic Rollout Library's tools that this package's tools do not have.

The options only change what an agent sees. A list of blocked commands is no protection; the sandbox is.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument, ToolExecutionError
from osmosis_grpc.protocol.types import ToolDict

_BY_SANDBOX = {"execution_mode", "pod_name", "namespace", "kubeconfig_path"}
_OPTIONS = {
    "bash_executor": {"blocked_commands", "allow_dangerous", *_BY_SANDBOX},
    "search": {"exclude_dirs", "search_extensions", *_BY_SANDBOX},
    "file_editor": {"allowed_extensions", "enable_linting", *_BY_SANDBOX},
}
_LISTS = {"blocked_commands", "exclude_dirs", "search_extensions", "allowed_extensions"}
_SEPARATORS = re.compile(r"[;&|\n]+")
_KUBERNETES = (
    "runs in no pod: pass the sandbox to AgenticRollout(..., sandbox=cluster.sandbox), with a KubernetesCluster of "
    "osmosis_grpc.tools.kubernetes"
)


def split(kind: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those that the tool has, and the older ones.

    Raises:
        InvalidArgument: An older option has an unsupported value. The message says what to write instead.
    """
    known = _OPTIONS.get(kind, set())
    older = {name: value for name, value in options.items() if name in known}
    for name, value in older.items():
        field = f"tools_config.{kind}.{name}"
        if name in _BY_SANDBOX and value not in (None, "local", "default"):
            raise InvalidArgument(field, _KUBERNETES)
        if name == "enable_linting" and value:
            raise InvalidArgument(field, "is not served: let the agent run a linter with bash_executor")
        if name in _LISTS and (isinstance(value, str) or not hasattr(value, "__iter__")):
            raise InvalidArgument(field, f"is a {type(value).__name__}, not a list of texts")
    return {name: value for name, value in options.items() if name not in known}, older


def with_older(tool: Any, kind: str, older: Mapping[str, Any]) -> Any:
    """Return a tool that obeys the older options."""
    effective = {name: value for name, value in older.items() if name in _LISTS}
    return _Limited(tool, kind, effective) if effective else tool


class Renamed:
    """A tool under another name."""

    def __init__(self, inner: Any, name: str) -> None:
        self.name, self._inner = name, inner

    def openai_schema(self) -> ToolDict:
        """Return the schema with the new name."""
        schema: Any = self._inner.openai_schema()
        return {**schema, "function": {**schema["function"], "name": self.name}}

    async def run(self, arguments: Mapping[str, Any], context: Any = None) -> Any:
        """Run a call."""
        return await self._inner.run(arguments, context)


class _Limited(Renamed):
    def __init__(self, inner: Any, kind: str, older: Mapping[str, Any]) -> None:
        super().__init__(inner, inner.name)
        self._older = older
        self._run: Callable[[dict[str, Any], Any], Any] = getattr(self, f"_{kind}")

    async def run(self, arguments: Mapping[str, Any], context: Any = None) -> Any:
        """Run a call. Raises ToolExecutionError if the options forbid it."""
        return await self._run(dict(arguments), context)

    async def _bash_executor(self, arguments: dict[str, Any], context: Any) -> Any:
        blocked = set(self._older["blocked_commands"])
        for part in _SEPARATORS.split(str(arguments.get("command", ""))):
            words = part.split()
            if words and (words[0] in blocked or PurePosixPath(words[0]).name in blocked):
                raise ToolExecutionError(f"the command {words[0]} is not allowed here", "", self.name)
        return await self._inner.run(arguments, context)

    async def _file_editor(self, arguments: dict[str, Any], context: Any) -> Any:
        path = PurePosixPath(str(arguments.get("path", "")))
        allowed = list(self._older["allowed_extensions"])
        if path.suffix and path.suffix not in allowed:
            text = f"files that end in {path.suffix} are not edited here, only {', '.join(allowed)}"
            raise ToolExecutionError(text, "", self.name)
        return await self._inner.run(arguments, context)

    async def _search(self, arguments: dict[str, Any], context: Any) -> Any:
        if "search_extensions" in self._older and not arguments.get("file_extensions"):
            arguments["file_extensions"] = list(self._older["search_extensions"])
        found = await self._inner.run(arguments, context)
        excluded = set(self._older.get("exclude_dirs") or ())
        if not excluded or not isinstance(found, dict):
            return found
        kept = [match for match in found.get("matches", ()) if not excluded & set(_folders(match))]
        left_out = len(found.get("matches", ())) - len(kept)
        return {**found, "matches": kept, "total_matches": found.get("total_matches", 0) - left_out}


def _folders(match: Mapping[str, Any]) -> tuple[str, ...]:
    path = PurePosixPath(str(match.get("file") or match.get("path") or ""))
    return path.parts if match.get("type") == "directory" else path.parts[:-1]
