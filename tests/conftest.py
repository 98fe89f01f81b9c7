"""Fixtures of several packages' tests: a real server, a real trainer, on free ports."""

import asyncio
import gc
import itertools
import os
import re
import sys
import types
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import uvicorn.server

from osmosis_grpc.network import channel_options
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.calculator import CalculatorAgent
from tests.callback_trainer import CallbackTrainer
from tests.docker_daemon import daemon  # noqa: F401 - a fixture
from tests.forked import Forked

os.environ.setdefault("OSMOSIS_ROLLOUT_SERVER_STATE_DIR", ":memory:")  # servers that tests start share no folder
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
"""Hundreds of processes start in tests, and each would compile the package: 1.8 s instead of 0.7."""


_SLOW = [hypothesis.HealthCheck.too_slow]  # says more of a busy machine than of a test
hypothesis.settings.register_profile("quick", max_examples=30, deadline=None, suppress_health_check=_SLOW)
hypothesis.settings.register_profile("thorough", max_examples=500, deadline=None, suppress_health_check=_SLOW)
hypothesis.settings.load_profile("quick")  # `make faults` runs the other one


async def _sleep(seconds: float, *result: Any) -> Any:
    return await asyncio.sleep(seconds / 20, *result)  # uvicorn's own


uvicorn.server.asyncio = types.SimpleNamespace(**(vars(asyncio) | {"sleep": _sleep}))
"""uvicorn sees ten times a second whether it is to stop; hundreds of HTTP servers end here."""


GROUPS = frozenset(
    {"slow", "long", "clients", "adapters", "trainers", "browser", "conformance", "ray", "programs"} | {"packages"}
)
"""Marks that choose the tests of a run."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files without a test that `-m` chooses: to import all files and their libraries takes long."""
    chosen = config.option.markexpr
    words = set(re.findall(r"\w+", chosen)) - {"and", "or", "not"}
    if not words or not words <= GROUPS or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    of_file = re.search(r"^pytestmark = (.*?)$(?!\n +)", text, re.M | re.S)
    every = set(re.findall(r"mark\.(\w+)", of_file[1])) if of_file else set()
    some = sorted((set(re.findall(r"mark\.(\w+)", text)) & GROUPS) - every)
    for count in range(len(some) + 1):
        for marks in itertools.combinations(some, count):
            if eval(chosen, {}, {word: word in every.union(marks) for word in words}):
                return None
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Permit other libraries to leave their sockets to the garbage collector."""
    for item in items:
        if item.get_closest_marker("adapters"):
            ignored = "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
            item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """Runs commands in processes that start at once; see tests/forked.py."""
    with Forked(
        "anyio.abc",
        "anyio.to_thread",
        "anyio._backends._asyncio",
        "pydantic.fields",
        "pydantic.type_adapter",
        "pydantic.types",
        "osmosis_grpc.cli.commands",
        "osmosis_grpc.records.reading.folder_source",
        "osmosis_grpc.cli.demo",
        "osmosis_grpc.cli.validate",
        "osmosis_grpc.cli.trial",
        "osmosis_grpc.cli.trial_findings",
        "osmosis_grpc.cli.replay",
        "osmosis_grpc.cli.show",
        "osmosis_grpc.cli.events",
        "osmosis_grpc.cli.query",
        "osmosis_grpc.cli.list",
        "osmosis_grpc.records.reading.server_source",
        "pyarrow",
        "duckdb",
        "osmosis_grpc.cli.eval",
        "osmosis_grpc.cli.compare",
        "osmosis_grpc.cli.rescore",
        "osmosis_grpc.cli.interactive",
        "osmosis_grpc.records.evaluate.formats",
        "osmosis_grpc.serve.command",
        "osmosis_grpc.serve.json_output",
        "osmosis_grpc.serve.process",
        "osmosis_grpc.server",
        "osmosis_grpc.engine.engine",
        "osmosis_grpc.policies",
        "osmosis_grpc.rollout.tools",
        "osmosis_grpc.settings.settings",
        "osmosis_grpc.settings.logs",
        "osmosis_grpc.agent.tool_decorator",
        "osmosis_grpc.viewer.app",
        "osmosis_grpc.cli.view",
        "rich.progress",
    ) as started:
        yield started


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Closes in the end what a test entered."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients do not try again for seconds what is UNAVAILABLE: the refusal itself is what is tested."""
    monkeypatch.setitem(channel_options.CLIENT_DEFAULTS, "grpc.enable_retries", 0)


@pytest.fixture
def serve(stack: AsyncExitStack) -> Callable[..., Any]:
    """Starts an agent server on a free port; the calculator when no agent loops are given."""

    async def start(*agent_loops: Any, **config: Any) -> AgentServer:
        defaults = {"outbox_delay": (0.05, 0.2), "retry_delay": (0.05, 0.2), "stop_again_after": (0.05, 0.1)}
        loops = list(agent_loops) or [CalculatorAgent()]
        server = AgentServer(loops, port=0, config=ServerConfig(**(defaults | config)))
        return await stack.enter_async_context(server)

    return start


@pytest.fixture
def train(stack: AsyncExitStack) -> Callable[..., Any]:
    """Starts a trainer with a policy on a free port."""

    async def start(policy: Any, **options: Any) -> CallbackTrainer:
        return await stack.enter_async_context(CallbackTrainer(policy, **options))

    return start


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
