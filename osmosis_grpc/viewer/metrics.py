"""Reads the metrics of a server: event-loop lag, latencies, callback attempts, and calls with their status codes.

While a page shows the metrics, the viewer reads the address /metrics, as Prometheus does, at most once in EVERY
seconds. `serve --view` reads the same text within the process.
"""

import asyncio
import math
import ssl
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from osmosis_grpc.network.target_policy import is_loopback
from osmosis_grpc.observability.exposition import render
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.server import AgentServer
from osmosis_grpc.server.attachment import Attachment
from osmosis_grpc.viewer.live import aside

EVERY = 5.0
"""How many seconds to reuse the metrics before they are read again."""
RECENT = 60.0
"""How many seconds the recent numbers cover."""
LAGS = 240
"""The most points in a chart of the event-loop lag."""
TIMEOUT = 5.0
MOST_BYTES = 4_000_000

Name = tuple[str, frozenset[tuple[str, str]]]
"""The name of a Prometheus sample, and its labels."""
Samples = Mapping[Name, float]
LAG = "osmosis_event_loop_lag_seconds"
CHATS = "osmosis_llm_call_duration_seconds"
TOOLS = "osmosis_tool_call_duration_seconds"
CALLS = "grpc_server_call"


class MetricsError(Exception):
    """The metrics cannot be read. The message has the reason."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of a histogram, in seconds. A percentile is interpolated within its bucket."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    most: float | None
    """The upper bound of the highest bucket that has a value; None if that bucket is unbounded."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of the event loop between two reads of the page, in seconds."""

    time: float
    """The time of the later read, in Unix seconds."""
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one method that the server has answered."""

    method: str
    open: int
    codes: tuple[tuple[str, int], ...]
    recent: tuple[tuple[str, int], ...]
    sent: float
    received: float


@dataclass(frozen=True, slots=True)
class Numbers:
    """The metrics that the pages show."""

    where: str
    seconds: float
    """The time that `recent_lag` and the recent codes cover; 0 for the first read."""
    lag: Spread | None
    recent_lag: Spread | None
    lags: tuple[Lag, ...]
    """The lag between each two reads, the oldest first, at most LAGS."""
    chats: Spread | None
    tools: tuple[tuple[str, Spread], ...]
    attempts: int
    ended: int
    attached: int
    dropped: int
    calls: tuple[Calls, ...]

    @property
    def codes(self) -> tuple[tuple[str, int, int], ...]:
        """Each status code, with the number of calls since the start and in the last RECENT seconds."""
        total, recent = Counter[str](), Counter[str]()
        for each in self.calls:
            total.update(dict(each.codes))
            recent.update(dict(each.recent))
        return tuple((code, count, recent[code]) for code, count in total.most_common())


class Metrics:
    """The metrics of one server. `read` returns the page /metrics; `trainers` returns the attached trainers."""

    def __init__(
        self, where: str, read: Callable[[], Awaitable[str]], trainers: Callable[[], Iterable[Attachment]] | None = None
    ) -> None:
        self.where = where
        self.trainers = trainers
        self._read = read
        self._lock = asyncio.Lock()
        self._pages: deque[tuple[float, Samples]] = deque()
        """The reads of the last RECENT seconds with their times, the oldest first."""
        self._lags: deque[Lag] = deque(maxlen=LAGS)

    async def numbers(self) -> Numbers:
        """Return the newest numbers. Raises MetricsError."""
        async with self._lock:
            now = time.monotonic()
            if not self._pages or now - self._pages[-1][0] >= EVERY:
                page = await self._read()
                samples = await aside(lambda: _samples(page))
                lag = _spread(_difference(samples, self._pages[-1][1]), LAG) if self._pages else None
                if lag is not None:
                    self._lags.append(Lag(time.time(), lag.p50, lag.p99))
                while self._pages and now - self._pages[0][0] > RECENT + EVERY:
                    self._pages.popleft()
                self._pages.append((now, samples))
            first, last, lags = self._pages[0], self._pages[-1], tuple(self._lags)
            return await aside(lambda: _numbers(self.where, *first, *last, lags))


def scraped(address: str, token: str = "", ca: str | None = None) -> Metrics:
    """Return the metrics of HOST:PORT, or of an address that begins with http:// or https://.

    The token is sent only over https or to this machine. Raises ValueError if the address has another form.
    """
    given = address if "://" in address else f"http://{address}"
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{address!r} is neither HOST:PORT nor an address that begins with http:// or https://")
    url = given if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"
    trusted = parts.scheme == "https" or is_loopback(parts.hostname)
    headers = {"authorization": f"Bearer {token}"} if token and trusted else {}
    context = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None

    async def read() -> str:
        try:
            timeout = aiohttp.ClientTimeout(TIMEOUT)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(url, headers=headers, ssl=context or True, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise MetricsError(
                        f"{url} answers {answer.status}; --metrics names the page /metrics of the server"
                    )
                return (await answer.content.read(MOST_BYTES)).decode()
        except (aiohttp.ClientError, OSError, UnicodeDecodeError) as error:
            raise MetricsError(f"{url} cannot be read: {printable(str(error) or type(error).__name__)}") from None

    return Metrics(url, read)


def metrics_of(server: AgentServer) -> Metrics:
    """Return the metrics of a server in this process, with its attached trainers."""

    async def read() -> str:
        return await aside(lambda: render(server.metrics.read())[0].decode())

    return Metrics("this process", read, lambda: server.attachments.attached)


def _samples(page: str) -> Samples:
    try:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }
    except ValueError as error:
        raise MetricsError(f"the page has no metrics: {printable(str(error))[:200]}") from None


def _difference(new: Samples, old: Samples) -> Samples:
    return {name: value - old.get(name, 0.0) for name, value in new.items()}


def _numbers(where: str, then: float, old: Samples, now: float, new: Samples, lags: tuple[Lag, ...]) -> Numbers:
    """Return the numbers of the newest page. Recent numbers are its differences from the old page."""
    recent = _difference(new, old)
    tools = sorted({dict(labels).get("tool", "") for name, labels in new if name == f"{TOOLS}_count"})
    spreads = ((tool, _spread(new, TOOLS, tool=tool)) for tool in tools)
    return Numbers(
        where=where,
        seconds=now - then,
        lag=_spread(new, LAG),
        recent_lag=_spread(recent, LAG) if now > then else None,
        lags=lags,
        chats=_spread(new, CHATS),
        tools=tuple((tool, spread) for tool, spread in spreads if spread is not None),
        attempts=int(_sum(new, "osmosis_callback_attempts_total")),
        ended=int(_sum(new, "osmosis_rollouts_total")),
        attached=int(_sum(new, "osmosis_attachments")),
        dropped=int(_sum(new, "osmosis_trajectory_events_dropped_total")),
        calls=tuple(_calls(new, recent)),
    )


def _calls(new: Samples, recent: Samples) -> Iterable[Calls]:
    methods = sorted({dict(labels)["grpc_method"] for name, labels in new if name == f"{CALLS}_started_total"})
    for method in methods:
        codes = _codes(new, method)
        yield Calls(
            method=method,
            open=int(_sum(new, f"{CALLS}_started_total", grpc_method=method)) - sum(count for _, count in codes),
            codes=codes,
            recent=_codes(recent, method),
            sent=_sum(new, f"{CALLS}_sent_total_compressed_message_size_bytes_sum", grpc_method=method),
            received=_sum(new, f"{CALLS}_rcvd_total_compressed_message_size_bytes_sum", grpc_method=method),
        )


def _codes(samples: Samples, method: str) -> tuple[tuple[str, int], ...]:
    found = {
        dict(labels)["grpc_status"]: int(value)
        for (name, labels), value in samples.items()
        if name == f"{CALLS}_duration_seconds_count" and ("grpc_method", method) in labels and value
    }
    return tuple(sorted(found.items()))


def _matching(samples: Samples, name: str, labels: Mapping[str, str]) -> Iterable[tuple[Mapping[str, str], float]]:
    for (each, given), value in samples.items():
        if each == name and labels.items() <= set(given):
            yield dict(given), value


def _sum(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for _, value in _matching(samples, name, labels))


def _spread(samples: Samples, name: str, **labels: str) -> Spread | None:
    buckets = sorted((float(given["le"]), value) for given, value in _matching(samples, f"{name}_bucket", labels))
    count = buckets[-1][1] if buckets else 0.0
    if count <= 0:
        return None
    before, most = 0.0, 0.0
    for bound, value in buckets:
        if value > before:
            most = bound
        before = value
    p50, p95, p99 = (_percentile(buckets, count * part) for part in (0.5, 0.95, 0.99))
    mean = _sum(samples, f"{name}_sum", **labels) / count
    return Spread(int(count), mean, p50, p95, p99, None if math.isinf(most) else most)


def _percentile(buckets: list[tuple[float, float]], rank: float) -> float:
    """Return the value with a rank, by linear interpolation within its bucket, as Prometheus does."""
    low, before = 0.0, 0.0
    for bound, value in buckets:
        if value >= rank:
            return low if math.isinf(bound) else low + (bound - low) * (rank - before) / (value - before)
        low, before = bound, value
    return low
