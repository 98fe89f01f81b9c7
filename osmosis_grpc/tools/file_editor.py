"""The tool `file_editor`: view, create, str_replace, insert and undo_edit, on the files of a sandbox."""

import asyncio
from typing import Any, Literal

from osmosis_grpc.agent.tool_decorator import Tool
from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.protocol.types.jsontext import repaired
from osmosis_grpc.tools.sandbox.port import FILE_BYTES, FileInfo, Sandbox, SandboxFileError, check_sandbox

BOM = "\ufeff"
CONTEXT = 4
"""The number of lines to show before and after an edit."""


def decoded(path: str, data: bytes) -> str:
    """Return the text of a file. A byte that is not UTF-8 survives encoded(). Raises SandboxFileError."""
    if b"\0" in data:
        raise SandboxFileError(f"{path} is not a text file")
    return data.decode("utf-8", "surrogateescape")


def encoded(text: str) -> bytes:
    """Return the bytes of a text of decoded()."""
    return text.encode("utf-8", "surrogateescape")


def lines_of(text: str) -> list[str]:
    """Return the lines with their ends. Only a newline ends a line."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def replaced(text: str, old: str, new: str) -> tuple[str, int]:
    """Return the text with `old` replaced, and the line of the edit, from 1. The text must have `old` exactly once.

    A newline in `old` also matches CR LF. Raises ToolArgumentError.
    """
    if not old:
        raise ToolArgumentError("old_str: it is empty; give the text to replace")
    if old not in text and _crlf(text) and "\n" in old:
        old, new = _with_crlf(old), _with_crlf(new)
    count = text.count(old)
    if count != 1:
        places = [text.count("\n", 0, at) + 1 for at in _positions(text, old)]
        found = f"it is in the file {count} times, in the lines {places}" if count else "it is not in the file"
        raise ToolArgumentError(f"old_str: {found}; give a text that is there exactly once")
    at = text.index(old)
    return text[:at] + new + text[at + len(old) :], text.count("\n", 0, at) + 1


def inserted(text: str, line: int, new: str) -> tuple[str, int]:
    """Return the text with new lines after a line, and the number of the first new line. Line 0 is the beginning.

    Raises ToolArgumentError.
    """
    mark, rest = (BOM, text[1:]) if text.startswith(BOM) else ("", text)
    lines = lines_of(rest)
    if not 0 <= line <= len(lines):
        raise ToolArgumentError(f"insert_line: {line} is not from 0 to {len(lines)}, the number of lines")
    end = "\r\n" if _crlf(text) else "\n"
    added = _with_crlf(new) if end == "\r\n" else new
    before, after = "".join(lines[:line]), "".join(lines[line:])
    if before and not before.endswith("\n"):  # the last line has no newline, so the new last line gets none
        return mark + before + end + added, line + 1
    if not added.endswith("\n"):
        added += end
    return mark + before + added + after, line + 1


def numbered(lines: list[str], first: int) -> str:
    """Return lines with their numbers."""
    shown = (repaired(line.rstrip("\n").rstrip("\r")) for line in lines)
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(shown, first))


def context_of(text: str, line: int, count: int) -> str:
    """Return the numbered lines around an edit of `count` lines."""
    lines = lines_of(text.removeprefix(BOM))
    first = max(1, line - CONTEXT)
    return numbered(lines[first - 1 : line + count + CONTEXT - 1], first)


def _positions(text: str, part: str) -> list[int]:
    found: list[int] = []
    at = text.find(part)
    while at >= 0 and len(found) < 10:
        found.append(at)
        at = text.find(part, at + len(part))
    return found


def _crlf(text: str) -> bool:
    return "\r\n" in text and text.count("\n") == text.count("\r\n")


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


NAME = "file_editor"
CLIPPED = "\n<response clipped>"
MAX_UNDO = 100
"""At most this many edits can be undone."""
MAX_UNDO_BYTES = 32 * 1024 * 1024
"""At most this many bytes of old contents are kept."""


def file_editor_tool(
    sandbox: Sandbox, *, max_file_size: int = FILE_BYTES, max_response_length: int = 10_000
) -> Tool[..., Any]:
    """Return the tool. One tool serves one rollout, because it keeps the contents before each edit.

    Args:
        sandbox: The sandbox with the files.
        max_file_size: The most bytes of a file that is read or written.
        max_response_length: The most characters of a result.

    Raises:
        ValueError: An option is bad.
    """
    check_sandbox(sandbox, NAME)
    for name, value in (("max_file_size", max_file_size), ("max_response_length", max_response_length)):
        if not value > 0:
            raise ValueError(f"{name}: {value!r} is not a positive integer")
    editor = _Editor(sandbox, max_file_size, max_response_length)

    async def file_editor(
        command: Literal["view", "create", "str_replace", "insert", "undo_edit"],
        path: str,
        file_text: str | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: int | None = None,
        view_range: list[int] | None = None,
    ) -> dict[str, Any]:
        """View, create and edit text files in the working folder.

        Args:
            command: view shows a file with line numbers, or a folder; create makes a new file; str_replace replaces a
                text that is in the file exactly once; insert adds lines; undo_edit takes back the last edit of the file
            path: the file or folder
            file_text: for create, the content
            old_str: for str_replace, the text to replace
            new_str: for str_replace, the new text, empty to remove the old one; for insert, the lines
            insert_line: for insert, the line after which the lines go; 0 is the beginning
            view_range: for view, the first and the last line, from 1; -1 is the end
        """
        async with editor.lock:
            match command:
                case "view":
                    return await editor.view(path, view_range)
                case "create":
                    return await editor.create(path, _given("file_text", file_text, command))
                case "str_replace":
                    old = _given("old_str", old_str, command)
                    return await editor.replace(path, old, _given("new_str", new_str, command))
                case "insert":
                    line = _given("insert_line", insert_line, command)
                    return await editor.insert(path, line, _given("new_str", new_str, command))
                case "undo_edit":
                    return await editor.undo(path)

    return Tool(file_editor, name=NAME)


def _given(name: str, value: Any, command: str) -> Any:
    if value is None:
        raise ToolArgumentError(f"{name}: {command} needs it", "", NAME)
    return value


class _Editor:
    def __init__(self, sandbox: Sandbox, most_bytes: int, most_characters: int) -> None:
        self._sandbox, self._most_bytes, self._most_characters = sandbox, most_bytes, most_characters
        self._undo: list[tuple[str, bytes | None]] = []
        """The path and the content before each edit, the newest last; None if the file did not exist."""
        self.lock = asyncio.Lock()
        """Held during a command, so that two edits in one reply do not overwrite each other."""

    async def view(self, path: str, view_range: list[int] | None) -> dict[str, Any]:
        """Show a file or a folder."""
        files = await self._sandbox.list_files(path, depth=2)
        if len(files) != 1 or files[0].is_folder or _normal(files[0].path) != _normal(self._relative(path)):
            return self._folder(files)
        lines = lines_of((await self._text(path)).removeprefix(BOM))
        first, last = 1, len(lines)
        if view_range is not None:
            if len(view_range) != 2:
                raise ToolArgumentError("view_range: give two numbers, the first and the last line", "", NAME)
            first, last = view_range[0], len(lines) if view_range[1] == -1 else view_range[1]
            if not 1 <= first <= last <= len(lines):
                raise ToolArgumentError(f"view_range: {view_range} is not within 1 and {len(lines)}", "", NAME)
        return {
            "content": self._clipped(numbered(lines[first - 1 : last], first)),
            "type": "file",
            "total_lines": len(lines),
            "displayed_lines": max(0, last - first + 1),
        }

    async def create(self, path: str, content: str) -> dict[str, Any]:
        """Make a new file."""
        try:
            there = await self._sandbox.list_files(path)
        except SandboxFileError:  # if the path is bad, writing it raises the error again
            there = None
        if there is not None:
            raise ToolArgumentError(f"path: {path} exists; change it with str_replace or insert", "", NAME)
        await self._write(path, None, content.encode("utf-8", "surrogatepass"))
        return {"message": f"{path} is created", "path": path}

    async def replace(self, path: str, old: str, new: str) -> dict[str, Any]:
        """Replace a text that the file has exactly once."""
        before = await self._text(path)
        after, line = replaced(before, old, new)
        await self._write(path, encoded(before), encoded(after))
        context = self._clipped(context_of(after, line, len(lines_of(new))))
        return {"message": f"{path} is changed", "path": path, "replacement_line": line, "context": context}

    async def insert(self, path: str, line: int, new: str) -> dict[str, Any]:
        """Add lines after a line."""
        before = await self._text(path)
        after, first = inserted(before, line, new)
        await self._write(path, encoded(before), encoded(after))
        count = len(lines_of(new))
        context = self._clipped(context_of(after, first, count))
        return {"message": f"{path} is changed", "path": path, "lines_inserted": count, "context": context}

    async def undo(self, path: str) -> dict[str, Any]:
        """Take back the last edit of a file; remove a file that was created."""
        name = self._relative(path)
        index = next((i for i in reversed(range(len(self._undo))) if self._undo[i][0] == name), None)
        if index is None:
            raise ToolArgumentError(f"path: there is no edit of {path} to take back", "", NAME)
        content = self._undo[index][1]
        if content is None:
            await self._sandbox.remove_file(path)
        else:
            await self._sandbox.write_file(path, content, most_bytes=self._most_bytes)
        del self._undo[index]
        done = "is removed, because its creation is taken back" if content is None else "is as before its last edit"
        return {"message": f"{path} {done}", "path": path}

    async def _text(self, path: str) -> str:
        return decoded(path, await self._sandbox.read_file(path, most_bytes=self._most_bytes))

    async def _write(self, path: str, before: bytes | None, after: bytes) -> None:
        await self._sandbox.write_file(path, after, most_bytes=self._most_bytes)
        self._undo.append((self._relative(path), before))
        while len(self._undo) > MAX_UNDO or sum(len(old or b"") for _, old in self._undo) > MAX_UNDO_BYTES:
            del self._undo[0]

    def _relative(self, path: str) -> str:
        return _normal(path.removeprefix(self._sandbox.folder.rstrip("/") + "/"))

    def _folder(self, files: list[FileInfo]) -> dict[str, Any]:
        shown = [file for file in files if not any(part.startswith(".") for part in file.path.split("/"))]
        names = [f"{file.path}/" if file.is_folder else file.path for file in shown]
        return {"content": self._clipped("\n".join(names)), "type": "folder", "entries": len(names)}

    def _clipped(self, text: str) -> str:
        return text if len(text) <= self._most_characters else text[: self._most_characters] + CLIPPED


def _normal(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in ("", "."))
