"""Makes the tool `search`. The search runs as a program in the sandbox, with a time limit."""

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

from osmosis_grpc.agent.tool_decorator import Tool
from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.tools.sandbox.port import FILE_BYTES, Sandbox, SandboxError, check_sandbox

NAME = "search"
SECONDS = 10.0
"""The default time limit of a search."""
MAX_RESULTS = 1_000
MAX_CONTEXT = 10
RESULT_BYTES = 16 * 1024 * 1024
"""The limit of the search program's output: more than MAX_RESULTS matches with their context need."""


def search_tool(
    sandbox: Sandbox, *, max_results: int = 100, max_file_size: int = FILE_BYTES, timeout: float = SECONDS
) -> Tool[..., Any]:
    """Return the tool.

    Args:
        sandbox: The sandbox with the files.
        max_results: The most matches of a result; a model may ask for fewer.
        max_file_size: Files with more bytes are skipped.
        timeout: A search that takes more seconds fails.

    Raises:
        ValueError: An option is bad.
    """
    check_sandbox(sandbox, NAME)
    for name, value, most in (("max_results", max_results, MAX_RESULTS), ("max_file_size", max_file_size, 2**30)):
        if value not in range(1, most + 1):
            raise ValueError(f"{name}: {value!r} is not an integer from 1 to {most}")
    if not timeout > 0:
        raise ValueError(f"timeout: {timeout!r} is not a positive number of seconds")
    most_results = max_results

    async def search(
        command: Literal["search_text", "search_files", "search_dir"],
        pattern: str,
        path: str = ".",
        case_sensitive: bool = False,
        regex: bool = False,
        whole_words: bool = False,
        max_results: int | None = None,
        file_extensions: list[str] | None = None,
        context_lines: int = 2,
    ) -> dict[str, Any]:
        """Search the working folder: text in files, or the names of files or folders.

        Args:
            command: search_text finds lines, search_files finds files by name, search_dir finds folders by name
            pattern: the text to find, or a regular expression of Python
            path: the folder or file in which to search
            case_sensitive: whether upper and lower case differ
            regex: whether the pattern is a regular expression
            whole_words: whether only whole words fit
            max_results: the most matches to return
            file_extensions: only files whose names end so, for example .py
            context_lines: the lines before and after a match to return
        """
        if not pattern:
            raise ToolArgumentError("pattern: it is empty", "", NAME)
        if max_results is not None and max_results < 1:
            raise ToolArgumentError("max_results: it has to be greater than 0", "", NAME)
        await sandbox.list_files(path)  # raises for a path that is outside or does not exist
        shown = min(max_results or most_results, most_results)
        options = {
            "command": command,
            "pattern": pattern,
            "path": path,
            "case_sensitive": case_sensitive,
            "regex": regex,
            "whole_words": whole_words,
            "max_results": shown,
            "file_extensions": file_extensions or [],
            "context_lines": max(0, min(context_lines, MAX_CONTEXT)),
            "max_file_size": max_file_size,
        }
        found = await _searched(sandbox, options, timeout)
        found["truncated"] = found["total_matches"] > len(found["matches"])
        return found | {"pattern": pattern, "search_path": path}

    return Tool(search, name=NAME, timeout=None)


async def _searched(sandbox: Sandbox, options: dict[str, Any], seconds: float) -> dict[str, Any]:
    given = json.dumps(options).encode()
    argv = [sandbox.python, "-I", "-S", "-c", _source()]
    ended = await sandbox.run(argv, stdin=given, seconds=seconds, output_bytes=RESULT_BYTES)
    if ended.timed_out:
        text = f"pattern: the search took longer than {seconds:g} s; give a simpler pattern, or a smaller path"
        raise ToolArgumentError(text, "", NAME)
    try:
        result: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        last = ended.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise SandboxError(f"the search failed with exit code {ended.exit_code}: {last}") from None
    if "error" in result:
        raise ToolArgumentError(f"pattern: {result['error']}", "", NAME)
    return result


@cache
def _source() -> str:
    return Path(__file__).with_name("search_program.py").read_text()
