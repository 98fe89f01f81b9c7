"""Writes the pages of rollouts to files: a folder for any web server, or one HTML file.

The pages come from the viewer's application, without a socket. Links lead only to pages of the export; others are
removed. Filters, live updates, tokens, labels and search need a viewer and are left out.
"""

import hashlib
import html
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from osmosis_grpc.records.reading.list_filter import ListOptions, pairs_of, rollout_filter
from osmosis_grpc.records.reading.source_port import Source
from osmosis_grpc.storage.backup import new_folder
from osmosis_grpc.viewer.app import STATIC, viewer_app
from osmosis_grpc.viewer.reads import MOST_ROWS

MOST_BYTES = 20_000_000
"""The most bytes of a single file."""
SCRIPTS = ("theme.js", "page.js", "timeline.js")
"""The scripts of a folder. Other scripts need a viewer."""
EVERY = 200
"""How many pages are written between two lines that show the progress."""
_CONTROLS = {"label", "input", "button", "script"}
"""Elements that are left out of a file without scripts."""
_EMPTY = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "rect", "source", "wbr"}
"""Elements without content."""
_POLICY = "default-src 'none'; style-src {style}; script-src {script}; img-src 'self' data:; base-uri 'none'"

Key = tuple[str, str, str]
"""A page: its path, its id (for a table, its page token), and the attempt."""
Links = dict[Key, str]


class ExportError(Exception):
    """The rollouts cannot be exported. The message has advice."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. `bytes` is the total size of all files."""

    rollouts: int
    files: int
    bytes: int


async def write_folder(source: Source, target: Path, listed: ListOptions, say: Callable[[str], None]) -> Exported:
    """Write the table, the rollouts and their groups to a new folder. index.html is the table.

    Raises FilterError, SourceError, ExportError, and OSError if the folder exists.
    """
    pages = _Pages(source, listed)
    with new_folder(target) as new:
        table = await pages.table()
        links = {key: _name(key) for key in pages.rollouts}
        groups = pages.groups if _is_whole(listed) else {}
        links |= {key: _name(key) for key in groups}
        links |= {("/", page, ""): f"index-{number}.html" if number else "index.html" for number, page in table.items()}
        for page in table.values():
            (new / links["/", page, ""]).write_text(_rewritten(await pages.listed(page), links))
        for count, key in enumerate([*pages.rollouts, *groups], 1):
            (new / links[key]).write_text(_rewritten(await pages.get(key), links))
            if count % EVERY == 0:
                say(f"exported {count} of {len(pages.rollouts) + len(groups)} pages")
        (new / "static").mkdir()
        for name in ("style.css", "icon.svg", *SCRIPTS):
            shutil.copyfile(STATIC / name, new / "static" / name)
        sizes = [path.stat().st_size for path in new.rglob("*") if path.is_file()]
    return Exported(len(pages.rollouts), len(sizes), sum(sizes))


async def write_file(source: Source, target: Path, listed: ListOptions, say: Callable[[str], None]) -> Exported:
    """Write the table and the rollouts to one file without scripts.

    Raises FilterError, SourceError, ExportError if the file would be too large, and OSError if it exists.
    """
    _check_new(target)
    pages = _Pages(source, listed)
    table = await pages.table()
    links = {key: f"#{_name(key).removesuffix('.html')}" for key in pages.rollouts}
    links |= {("/", page, ""): f"#table-{number}" if number else "#" for number, page in table.items()}
    parts = [_part(await pages.listed(page), links, links["/", page, ""][1:] or "table") for page in table.values()]
    size = sum(map(len, parts))
    for count, key in enumerate(pages.rollouts, 1):
        part = _part(await pages.get(key), links, links[key][1:])
        parts.append(part)
        size += len(part.encode())
        if size > MOST_BYTES:
            raise ExportError(
                f"a single file has at most {MOST_BYTES // 1_000_000} MB, and {count} of {len(pages.rollouts)} "
                f"rollouts have more; select fewer, such as with --state failed or --limit {max(1, count // 2)}, "
                "or leave out --single-file"
            )
        if count % EVERY == 0:
            say(f"exported {count} of {len(pages.rollouts)} rollouts")
    text = _single((STATIC / "style.css").read_text(), parts)
    _write(target, text)
    return Exported(len(pages.rollouts), 1, len(text.encode()))


def _check_new(target: Path) -> None:
    if target.exists():
        raise FileExistsError(f"{target} is there already; name a new file")


def _write(target: Path, text: str) -> None:
    new = target.with_name(f".{target.name}.new")
    new.unlink(missing_ok=True)
    with open(new, "x") as file:  # a link of this name is not followed
        file.write(text)
    new.replace(target)


class _Pages:
    """The pages of the viewer of a source, by path and query."""

    def __init__(self, source: Source, listed: ListOptions) -> None:
        rollout_filter(listed, 0.0)
        self._app = viewer_app(source, whole=True)
        self._listed = listed
        self.rollouts: dict[tuple[str, str, str], None] = {}
        self.groups: dict[tuple[str, str, str], None] = {}
        self._tables: dict[str, str] = {}

    async def table(self) -> dict[int, str]:
        """Read all pages of the table, and collect their rollouts and groups. Return the tokens of the pages."""
        left, token = self._listed.limit, ""
        found: dict[int, str] = {}
        while True:
            limit = min(left or MOST_ROWS, MOST_ROWS)
            text = await self._ask("/", [*pairs_of(replace(self._listed, limit=limit)), ("page", token)])
            found[len(found)], self._tables[token] = token, text
            seen = _Links()
            seen.feed(text)
            self.rollouts |= dict.fromkeys(key for key in seen.found if key[0] == "/rollout")
            self.groups |= dict.fromkeys(key for key in seen.found if key[0] == "/group")
            following = [key[1] for key in seen.found if key[0] == "/" and key[1] not in self._tables]
            if self._listed.limit:
                left = self._listed.limit - len(self.rollouts)
            if not following or (self._listed.limit and left <= 0):
                break
            token = following[-1]
        if not self.rollouts:
            raise ExportError("no rollout matches")
        return found

    async def listed(self, token: str) -> str:
        """Return the table with a token."""
        return self._tables[token]

    async def get(self, key: tuple[str, str, str]) -> str:
        """Return the page of a rollout or of a group."""
        path, name, attempt = key
        return await self._ask(path, [("id", name), *([("attempt", attempt)] if attempt else [])])

    async def _ask(self, path: str, query: list[tuple[str, str]]) -> str:
        """Request a page from the application like a browser on this machine, without a socket."""
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": urlencode([pair for pair in query if pair[1]]).encode(),
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        status, body = 0, b""

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status, body
            status = message.get("status", status)
            body += message.get("body", b"")

        call: Callable[..., Awaitable[None]] = self._app
        await call(scope, receive, send)
        if status != 200:
            raise ExportError(f"the page {path} of {dict(query).get('id', 'the table')} has the status {status}")
        return body.decode()


def _key(href: str) -> tuple[str, str, str] | None:
    """Return the page to which a link leads, or None if the export cannot contain that page."""
    at = urlsplit(href)
    query = parse_qs(at.query)
    if at.path == "/" and ("page" in query or not query):
        return "/", query.get("page", [""])[0], ""
    if at.path == "/rollout" and set(query) <= {"id", "attempt"}:
        return "/rollout", query["id"][0], query.get("attempt", [""])[0]
    if at.path == "/group" and set(query) == {"id"}:
        return "/group", query["id"][0], ""
    return None


def _name(key: tuple[str, str, str]) -> str:
    """Return the name of a page's file. It begins with the readable characters of the id."""
    path, name, attempt = key
    readable = "".join(c if c.isascii() and c.isalnum() else "-" for c in name)[:40].strip("-")
    digest = hashlib.sha256(f"{name}/{attempt}".encode()).hexdigest()[:10]
    return f"{path[1:]}-{readable}-{digest}.html"


def _is_whole(listed: ListOptions) -> bool:
    """Return whether the filters select whole groups, so that the page of a group shows only exported rollouts."""
    return replace(listed, group="", limit=0) == ListOptions(limit=0) and not listed.limit


class _Links(HTMLParser):
    """Collects the targets of the links of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href and href.startswith("/"):
            key = _key(href)
            if key is not None and (key[0] != "/" or key[1]):
                self.found.append(key)


class _Rewriter(HTMLParser):
    """Rewrites a page with the links of the export. With `single`, also leaves out ids, buttons and scripts."""

    def __init__(self, links: Links, *, single: bool) -> None:
        super().__init__(convert_charrefs=False)
        self._links = links
        self._single = single
        self._skipped: list[str] = []
        """The open elements that are left out, the outermost first."""
        self._in_navigation = False
        self.out: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._in_navigation = tag == "nav" or self._in_navigation
        if self._skipped or self._is_left_out(tag, given):
            if tag not in _EMPTY:
                self._skipped.append(tag)
            return
        kept = {name: value for name, value in given.items() if not name.startswith(("hx-", "sse-"))}
        if self._single:
            kept = {name: value for name, value in kept.items() if name not in ("id", "aria-labelledby")}
        for name in ("href", "src"):
            if name in kept:
                address = self._address(kept[name])
                if address is None:
                    del kept[name]
                else:
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
        if tag == "form":
            return self._single or values.get("method") != "dialog"
        if (
            (self._single and tag in _CONTROLS)
            or values.get("name") == "htmx-config"
            or "remark-form" in values.get("class", "")
        ):
            return True
        if tag == "button":
            return "data-copy-from" in values
        if tag == "script":
            return not values.get("src", "").endswith(SCRIPTS)
        if tag == "a" and (self._in_navigation or "button" in values.get("class", "").split()):
            return self._address(values.get("href", "")) is None
        return False

    def _address(self, href: str) -> str | None:
        if href.startswith("#"):
            return None if self._single else href
        if href.startswith("data:image/"):
            return href
        if href.startswith("/static/"):
            return href[1:]
        key = _key(href)
        known = self._links.get(key) if key is not None else None
        fragment = urlsplit(href).fragment
        return f"{known}#{fragment}" if known and fragment and not self._single else known


def _rewritten(page: str, links: Links) -> str:
    writer = _Rewriter(links, single=False)
    writer.feed(page)
    writer.close()
    policy = _POLICY.format(style="'self'", script="'self'")
    return "".join(writer.out).replace(
        "<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">', 1
    )


def _part(page: str, links: Links, name: str) -> str:
    """Return the content of a page as a section of a single file."""
    inner = page[page.index('<main id="content">') + len('<main id="content">') : page.rindex("</main>")]
    writer = _Rewriter(links, single=True)
    writer.feed(inner)
    writer.close()
    back = "" if name.startswith("table") else '<p><a href="#">All rollouts</a></p>'
    return f'<section class="file" id="{name}">{back}{"".join(writer.out)}</section>\n'


def _single(style: str, parts: list[str]) -> str:
    """Return the single file. It shows the section that its address names, or the first one."""
    policy = _POLICY.format(style="'unsafe-inline'", script="'none'")
    shown = ".file { display: none; } .file:target, body:not(:has(.file:target)) #table { display: block; }"
    head = (
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>Rollouts</title>\n<style>{style}\n{shown}</style>",
    )
    body = f"<body>\n<main>\n{''.join(parts)}</main>\n</body>"
    return "\n".join(('<!doctype html>\n<html lang="en">\n<head>', *head, "</head>", body, "</html>\n"))
