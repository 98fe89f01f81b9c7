"""Renders the templates. Also formats what all pages share: numbers, times, addresses, and commands to copy."""

import json
import shlex
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from osmosis_grpc import __version__
from osmosis_grpc.protocol.types import RolloutState
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.records.reading.list_filter import ListOptions, options_of, pairs_of
from osmosis_grpc.records.reading.phrases import span
from osmosis_grpc.viewer.live import Feed, Feeds
from osmosis_grpc.viewer.metrics import Metrics, MetricsError, Numbers
from osmosis_grpc.viewer.reads import Reads

A = TypeVar("A", bound=Hashable)
T = TypeVar("T")
TEMPLATES = Path(__file__).parent / "templates"
MOST_CHARS = 20_000
"""A text is cut off after this many characters. The record of its turn has the whole text."""
KINDS = {
    RolloutState.COMPLETED: "good",
    RolloutState.FAILED: "bad",
    RolloutState.DEADLINE_EXCEEDED: "bad",
    RolloutState.CANCELLED: "warn",
    RolloutState.RUNNING: "live",
    RolloutState.REPORTING: "live",
}
"""The colours of states. All other states have the colour of waiting."""


class Texts(Protocol):
    """Decodes tokens, such as TokenTexts of a model's folder."""

    def of(self, ids: Iterable[int], /) -> list[str]:
        """Return the text of each id; empty if an id has none."""


class Pages:
    """The templates, the reads and the feeds of the pages."""

    def __init__(
        self,
        reads: Reads,
        words: str,
        feeds: Feeds,
        texts: Texts | None,
        metrics: Metrics | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self.reads = reads
        self.texts = texts
        self.metrics = metrics
        self.feeds = feeds
        self.whole = whole
        """Whether pages load nothing later, because they become files."""
        self._words = words
        self._templates = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "span": duration,
            "ticked": spaced,
            "number": number,
            "count": lambda value: f"{value:,}",
            "ago": lambda then, now: f"{spaced(now - then)} ago",
            "date": date,
            "when": when,
            "size": size,
            "clock": lambda seconds: time.strftime("%H:%M:%S", time.gmtime(seconds)),
            "shown": shown,
            "line": line,
            "json": as_json,
            "kind": lambda state: KINDS.get(state, "wait"),
            "address": address,
        }
        self._templates.globals |= {
            "where": reads.source.where,
            "version": __version__,
            "command": self.command,
            "most_chars": MOST_CHARS,
            "whole": whole,
            "has_runs": isinstance(reads.source, FolderSource) and (reads.source.folder / "run.json").exists(),
        }

    def text(self, template: str, **values: Any) -> str:
        """Render a template. Replace lone surrogates, which UTF-8 cannot encode, by question marks."""
        text = str(self._templates.get_template(template).render(**values))
        return text.encode("utf-8", "replace").decode()

    def page(self, template: str, **values: Any) -> HTMLResponse:
        """Return a response with a rendered template."""
        return HTMLResponse(self.text(template, **values))

    def problem(self, request: Request, text: str, status: int) -> HTMLResponse:
        """Return a page, or a part of one, with an error."""
        template = "problem_part.html" if is_part(request) else "problem.html"
        return HTMLResponse(
            self.text(template, problem=text, status=status, phrase=HTTPStatus(status).phrase, at=""), status
        )

    def follow(
        self,
        routes: APIRouter,
        name: str,
        *,
        asked: Callable[[Request], A],
        read: Callable[[A], Awaitable[T]],
        values: Callable[[A, T], dict[str, Any]],
        key: Callable[[T], Hashable],
        ended: Callable[[T], bool],
        later: Callable[[A], Awaitable[T]] | None = None,
        calm: bool = False,
    ) -> None:
        """Add the page /NAME and the stream of its changes, /NAME/stream.

        Args:
            routes: Where to add both.
            name: The name, also of the templates: NAME.html, and NAME_part.html for the changing part.
            asked: Returns the parameters of a page's address.
            read: Returns the content of the page.
            values: Returns the values of the templates.
            key: Returns a value that changes when the content must be rendered again.
            ended: Returns whether the content can no longer change.
            later: Returns the content of the stream, if it has more than `read` returns.
            calm: Whether updates are rare, because users study the page for longer.
        """

        @routes.get(f"/{name}")
        async def show(request: Request) -> Response:
            wanted = asked(request)
            return self.page(f"{name}.html", **values(wanted, await read(wanted)), at=name)

        @routes.get(f"/{name}/stream")
        async def follow(request: Request) -> Response:
            wanted = asked(request)

            def shown(found: T) -> list[tuple[str, str]]:
                return [(name, self.text(f"{name}_part.html", **values(wanted, found), at=name))]

            return self.feeds.stream((name, wanted), Feed(lambda: (later or read)(wanted), key, shown, ended, calm))

    async def numbers(self) -> tuple[Numbers | None, str]:
        """Return the newest metrics of the server, or None, and why they could not be read."""
        if self.metrics is None:
            return None, ""
        try:
            return await self.metrics.numbers(), ""
        except MetricsError as error:
            return None, str(error)

    def command(self, name: str, *words: object) -> str:
        """Return the command line that prints what a page shows."""
        where = self._words.removeprefix("--from ") if name == "ping" else self._words  # it takes the server as it is
        return printable(shlex.join(["osmosis-grpc", name, *map(str, words)]) + f" {where}".rstrip())


def is_part(request: Request) -> bool:
    """Return whether a page requests a part of itself."""
    return request.headers.get("hx-request") == "true"


def address(path: str, **query: Any) -> str:
    """Return a path with a query. Values that are empty or None are left out."""
    given = [(name.replace("_", "-"), value) for name, value in query.items() if value not in (None, "")]
    return f"{path}?{urlencode(given)}" if given else path


def number(value: float | None) -> str:
    """Format a number with at most four significant digits. None becomes an empty text."""
    return "" if value is None else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Format a duration: in milliseconds below a second, else as the commands do."""
    if seconds < 1:
        return "<1 ms" if 0 < seconds < 0.0005 else f"{max(0.0, 1000 * seconds):.0f} ms"
    return spaced(seconds)


def spaced(seconds: float) -> str:
    """Format a duration as the commands do, with a space before its unit."""
    return span(seconds).replace("s", " s")


def size(count: float) -> str:
    """Format a number of bytes with at most three significant digits."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}" if count < 1000 else f"{count:,.0f} {unit}"


def date(seconds: float) -> str:
    """Return a time in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def when(seconds: float, now: float) -> str:
    """Return a time in UTC. Leave out its date if it is the date of `now`."""
    return date(seconds)[11:] if date(seconds)[:10] == date(now)[:10] else date(seconds)


def shown(text: Any) -> str:
    """Escape the characters of a text that are not printable, and cut it off if it is very long."""
    return printable(str(text)[:MOST_CHARS], keep="\n\t")


def line(text: Any, most: int = 160) -> str:
    """Return a text as one line of at most `most` characters."""
    whole = " ".join(str(text)[: 4 * most].split())
    return str(printable(whole if len(whole) <= most else f"{whole[: most - 1]}…", keep="…"))


def as_json(value: Any) -> str:
    """Return a value as indented JSON. Parse a text first if it is JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def options_in(request: Request, limit: int, own: Collection[str] = ()) -> ListOptions:
    """Return the filters of an address, by default with `limit`. Ignore the parameters `own`. Raises FilterError."""
    options = options_of(pair for pair in request.query_params.multi_items() if pair[0] not in own)
    return options if "limit" in request.query_params else replace(options, limit=limit)


def filter_values(options: ListOptions, limit: int) -> dict[str, Any]:
    """Return the filters and their query, for a template. Leave out the limit if it is `limit`."""
    filters = [pair for pair in pairs_of(options) if pair != ("limit", f"{limit}")]
    return {"filters": filters, "query": urlencode(filters)}
