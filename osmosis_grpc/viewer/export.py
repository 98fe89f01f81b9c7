"""Writes the pages of rollouts to a folder for any web server.

The pages are those of the viewer, which is asked without a socket. A link leads to a page of the export, or it is no
link. What only a viewer can do is left out: filters, live updates, tokens, labels, search.
"""

import hashlib
import html
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from fastapi import FastAPI

from osmosis_grpc.protocol.types import RolloutInfo
from osmosis_grpc.records.reading.list_filter import ListOptions, pairs_of, rollout_filter
from osmosis_grpc.records.reading.source_port import Source
from osmosis_grpc.storage.backup import new_folder
from osmosis_grpc.viewer.app import STATIC, viewer_app
from osmosis_grpc.viewer.reads import MOST_ROWS, Reads

SCRIPTS = ("theme.js", "page.js", "timeline.js")
"""The scripts of a folder. Other scripts need a viewer."""
EVERY = 200
"""After this many pages, a line says how far the export is."""
_EMPTY = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "rect", "source", "wbr"}
"""Elements without content."""
_POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; base-uri 'none'"

Key = tuple[str, str, str]
"""A page: its path, the id or the token of a table, and the attempt."""
Links = dict[Key, str]


class ExportError(Exception):
    """The rollouts cannot be exported. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. `bytes` are those of all files."""

    rollouts: int
    files: int
    bytes: int


async def write_folder(source: Source, target: Path, listed: ListOptions, say: Callable[[str], None]) -> Exported:
    """Write the table, the rollouts and their groups to a new folder. index.html is the table.

    Raises FilterError, SourceError, ExportError, and OSError if the folder is there already.
    """
    rollout_filter(listed, 0.0)  # a wrong option makes no folder
    app = viewer_app(source, whole=True)
    with new_folder(target) as new:
        rows, tables = await _tables(app, listed)
        if not rows:
            raise ExportError("no rollout matches")
        rollouts = [("/rollout", info.rollout_id, str(info.attempt)) for info in rows]
        names = dict.fromkeys(info.group.id for info in rows if info.group is not None and _is_whole(listed))
        pages = [*rollouts, *(("/group", name, "") for name in names)]
        links = {key: _name(key) for key in pages}
        links |= {("/", token, ""): f"index-{at}.html" if at else "index.html" for at, token in enumerate(tables)}
        for token, page in tables.items():
            (new / links["/", token, ""]).write_text(_rewritten(page, links))
        for count, key in enumerate(pages, 1):
            path, name, attempt = key
            page = await _ask(app, path, [("id", name), ("attempt", attempt)])
            (new / links[key]).write_text(_rewritten(page, links))
            if count % EVERY == 0:
                say(f"exported {count} of {len(pages)} pages")
        (new / "static").mkdir()
        for name in ("style.css", "icon.svg", *SCRIPTS):
            shutil.copyfile(STATIC / name, new / "static" / name)
        sizes = [path.stat().st_size for path in new.rglob("*") if path.is_file()]
    return Exported(len(rollouts), len(sizes), sum(sizes))


async def _tables(app: FastAPI, listed: ListOptions) -> tuple[list[RolloutInfo], dict[str, str]]:
    """Return the rollouts, and the pages of the table by their tokens."""
    reads: Reads = app.state.reads
    rows: list[RolloutInfo] = []
    pages: dict[str, str] = {}
    token = ""
    while token not in pages and not (listed.limit and len(rows) >= listed.limit):
        left = listed.limit - len(rows) if listed.limit else MOST_ROWS
        options = replace(listed, limit=min(left, MOST_ROWS))
        pages[token] = await _ask(app, "/", [*pairs_of(options), ("page", token)])
        found = await reads.listed(options, token=token)
        rows += found.rows
        token = found.more
    return rows, pages


async def _ask(app: FastAPI, path: str, query: list[tuple[str, str]]) -> str:
    """Ask the application as a browser on this machine does, without a socket."""
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "query_string": urlencode([pair for pair in query if pair[1]]).encode(),
        "headers": [(b"host", b"127.0.0.1")],
    }
    status, body = 0, b""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    await app(scope, receive, send)
    if status != 200:
        raise ExportError(f"the page {path} of {dict(query).get('id', 'the table')} has the status {status}")
    return body.decode()


def _key(href: str) -> Key | None:
    """Return what a link of a page leads to, or None if the export cannot have it."""
    at = urlsplit(href)
    query = parse_qs(at.query)
    if at.path == "/" and ("page" in query or not query):
        return "/", query.get("page", [""])[0], ""
    if at.path == "/rollout" and set(query) <= {"id", "attempt"}:
        return "/rollout", query["id"][0], query.get("attempt", [""])[0]
    if at.path == "/group" and set(query) == {"id"}:
        return "/group", query["id"][0], ""
    return None


def _name(key: Key) -> str:
    """Return the name of a page's file. It begins with what can be read of the id."""
    path, name, attempt = key
    readable = "".join(c if c.isascii() and c.isalnum() else "-" for c in name)[:40].strip("-")
    digest = hashlib.sha256(f"{name}/{attempt}".encode()).hexdigest()[:10]
    return f"{path[1:]}-{readable}-{digest}.html"


def _is_whole(listed: ListOptions) -> bool:
    """Return whether groups are selected wholly, so that the page of a group shows no other rollouts."""
    return replace(listed, group="") == ListOptions(limit=0)


class _Rewriter(HTMLParser):
    """Writes a page again with the links of the export."""

    def __init__(self, links: Links) -> None:
        super().__init__(convert_charrefs=False)
        self._links = links
        self._skipped: list[str] = []
        """The open elements that are left out, the outermost first."""
        self._in_navigation = False
        self.out: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._in_navigation = tag == "nav" or self._in_navigation
        if self._skipped or self._is_left_out(tag, values):
            if tag not in _EMPTY:
                self._skipped.append(tag)
            return
        kept = {name: value for name, value in values.items() if not name.startswith(("hx-", "sse-"))}
        for name in kept.keys() & {"href", "src"}:
            address = self._address(kept.pop(name))
            if address is not None:
                kept[name] = address
        words = "".join(f' {name}="{html.escape(value)}"' for name, value in kept.items())
        self.out.append(f"<{tag}{words}>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _EMPTY:
            self.handle_endtag(tag)
        elif tag == "rect" and self.out and self.out[-1].startswith("<rect"):
            self.out.append("</rect>")

    def handle_endtag(self, tag: str) -> None:
        self._in_navigation = self._in_navigation and tag != "nav"
        if self._skipped:
            if tag in self._skipped:
                while self._skipped.pop() != tag:
                    pass
        elif tag not in _EMPTY:
            self.out.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.out.append(data)

    def handle_entityref(self, name: str) -> None:
        self.handle_data(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.handle_data(f"&#{name};")

    def handle_decl(self, decl: str) -> None:
        self.handle_data(f"<!{decl}>")

    def _is_left_out(self, tag: str, values: dict[str, str]) -> bool:
        if values.get("name") == "htmx-config" or "remark-form" in values.get("class", ""):
            return True
        if tag == "form":
            return values.get("method") != "dialog"
        if tag == "button":
            return "data-copy-from" in values
        if tag == "script":
            return not values.get("src", "").endswith(SCRIPTS)
        if tag == "a" and (self._in_navigation or "button" in values.get("class", "").split()):
            return self._address(values.get("href", "")) is None
        return False

    def _address(self, href: str) -> str | None:
        """Return the address in the export, or None if there is none."""
        if href.startswith(("#", "data:image/")):
            return href
        if href.startswith("/static/"):
            return href[1:]
        key = _key(href)
        file = self._links.get(key) if key is not None else None
        fragment = urlsplit(href).fragment
        return f"{file}#{fragment}" if file and fragment else file


def _rewritten(page: str, links: Links) -> str:
    writer = _Rewriter(links)
    writer.feed(page)
    writer.close()
    policy = f'<head>\n<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    return "".join(writer.out).replace("<head>", policy, 1)
