"""The page of rollouts: a table that follows the source. Its address has the filters of the command `list`."""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from osmosis_grpc.protocol.types import RolloutInfo, RolloutState
from osmosis_grpc.records.reading.list_filter import FilterError, ListOptions, pairs_of
from osmosis_grpc.viewer.live import Feed
from osmosis_grpc.viewer.pages import Pages, is_part, options_in
from osmosis_grpc.viewer.reads import Listed

ROWS = 200
"""How many rollouts a page has, unless its address sets another limit."""
MOST_TEXT = 500
OWN = ("q", "page")
"""The parameters of the address that are not filters of `list`: the text to search for, and the page."""
STATES = ("RUNNING", "QUEUED", "COMPLETED", "FAILED", "CANCELLED", "DEADLINE_EXCEEDED")


@dataclass(frozen=True, slots=True)
class Asked:
    """The parameters in the address of the page."""

    options: ListOptions
    search: str = ""
    page: str = ""

    @classmethod
    def of(cls, request: Request) -> "Asked":
        """Return the parameters of an address. Raises FilterError."""
        own = {name: text for name, text in request.query_params.items() if name in OWN}
        options = options_in(request, ROWS, OWN)
        search = own.get("q", "").strip()
        if len(search) > MOST_TEXT:
            raise FilterError("q", f"it has {len(search)} characters; search for at most {MOST_TEXT}")
        return cls(options, search, own.get("page", ""))

    def pairs(self) -> list[tuple[str, str]]:
        """Return the filters and the search, without the page."""
        usual = [pair for pair in pairs_of(self.options) if pair != ("limit", str(ROWS))]
        return [*usual, *([("q", self.search)] if self.search else [])]

    def query(self, page: str = "") -> str:
        """Return the query of the address of a page."""
        return urlencode([*self.pairs(), *([("page", page)] if page else [])])

    def without(self, gone: tuple[str, str]) -> str:
        """Return the address without one filter."""
        rest = urlencode([pair for pair in self.pairs() if pair != gone])
        return f"/?{rest}" if rest else "/"

    def also(self, name: str, value: object) -> str:
        """Return the address with this filter added. It replaces a filter with the same name."""
        return "/?" + urlencode([*(pair for pair in self.pairs() if pair[0] != name), (name, str(value))])

    def exactly(self, reward: float) -> str:
        """Return the address of the rollouts that have exactly this reward."""
        names = ("min-reward", "max-reward")
        return "/?" + urlencode(
            [*(pair for pair in self.pairs() if pair[0] not in names), *((n, reward) for n in names)]
        )

    @property
    def words(self) -> list[str]:
        """The same filters on the command line."""
        words = [(name, text) for name, text in pairs_of(self.options) if text != "1" or name not in _SWITCHES]
        switches = [f"--{name}" for name, text in pairs_of(self.options) if name in _SWITCHES]
        return [word for name, text in words for word in (f"--{name}", text)] + switches


_SWITCHES = ("undelivered", "oldest")


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts of the rows of a page. Times are in seconds."""

    rows: int
    unfinished: int
    ended: int
    failed: int
    per_minute: int
    p50: float | None
    p95: float | None
    mean_reward: float | None

    @classmethod
    def of(cls, rows: tuple[RolloutInfo, ...], now: float) -> "Counters":
        """Count the rows of a page."""
        ended = [info for info in rows if info.end_time is not None]
        times = sorted(info.end_time - info.accept_time for info in ended if info.end_time is not None)
        states = Counter(info.state for info in ended)
        rewards = [info.reward for info in rows if info.reward is not None]
        return cls(
            rows=len(rows),
            unfinished=len(rows) - len(ended),
            ended=len(ended),
            failed=states[RolloutState.FAILED] + states[RolloutState.DEADLINE_EXCEEDED],
            per_minute=sum(now - 60 <= (info.end_time or 0.0) <= now for info in ended),
            p50=times[len(times) // 2] if times else None,
            p95=times[min(len(times) - 1, int(len(times) * 0.95))] if times else None,
            mean_reward=sum(rewards) / len(rewards) if rewards else None,
        )


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()

    def values(asked: Asked, found: Listed) -> dict[str, Any]:
        return {
            "asked": asked,
            "also": cache(asked.also),  # most rows have the same states and agents
            "exactly": cache(asked.exactly),
            "found": found,
            "counters": Counters.of(found.rows, found.now),
            "at": "rollouts",
        }

    @routes.get("/")
    async def show(request: Request) -> Response:
        asked = Asked.of(request)
        found = await pages.reads.listed_with_tasks(asked.options, asked.search, asked.page)
        template = "rollouts_table.html" if is_part(request) else "rollouts.html"
        return pages.page(template, **values(asked, found), states=STATES)

    @routes.get("/stream")
    async def follow(request: Request) -> Response:
        asked = Asked.of(request)
        feed = Feed(
            lambda: pages.reads.listed_with_tasks(asked.options, asked.search, asked.page),
            lambda found: (found.rows, found.stopped, len(found.tasks)),
            lambda found: [("rows", pages.text("rollouts_table.html", **values(asked, found)))],
        )
        return pages.feeds.stream(("rollouts", asked), feed)

    return routes
