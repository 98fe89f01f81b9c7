"""Gives the Osmosis SDK's own tests the private names that they use: a plugin for pytest, see sdk_own_tests.py.

Three private places of 0.2.14, for which the package has others: the shared registry, the HTTP client inside of
OsmosisLLMClient, which the tests replace, and the counts of a RolloutContext. Each shim leads to the object that the
package has, so the tests check its behaviour. A test that uses any other name that is not here is skipped.
"""

import json
import os
import sys
from contextvars import ContextVar
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import httpx
import pytest

from osmosis_gateway.llm_client import OsmosisLLMClient
from osmosis_grpc.compat import older_paths, sdk_functions
from osmosis_grpc.rollout import RolloutContext, registry


class _Absent(type):
    """The class of names that are not here. A test that uses one is skipped; the reason names it."""

    absent: str

    def __call__(cls, *args: Any, **options: Any) -> Any:
        pytest.skip(cls.absent, allow_module_level=True)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or name in ("_mock_methods", "pytestmark", "absent"):
            raise AttributeError(name)
        pytest.skip(cls.absent, allow_module_level=True)


def _absent(module: str, name: str) -> type:
    made: type = _Absent(name, (Exception,), {"absent": f"{module}.{name}", "__module__": module})
    return made


class AbsentModules(MetaPathFinder, Loader):
    """Makes the SDK's modules that are not here. Their names are there, and skip the tests that use them."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module of the SDK."""
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(("osmosis_grpc.", "harbor")) else None

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module."""
        module.__dict__.update(__getattr__=lambda name: get(module.__name__.removeprefix("osmosis_grpc."), name))


def get(module: str, name: str) -> Any:
    """Return the object of a name of the SDK. One that is not here is absent."""
    if name == "_output_context_var":  # the conftest of later versions resets it around each test
        return ContextVar(name)
    try:
        return _get(module, name)
    except (ImportError, AttributeError):
        if name.startswith("__") or f"{module}.{name}" in older_paths.recorded():  # a module, which is imported then
            raise AttributeError(name) from None
        return _absent(module, name)


class _Answer:
    """An answer of the tests' client, as aiohttp has it."""

    def __init__(self, client: Any, url: str, data: bytes, headers: dict[str, str]) -> None:
        self._call = (client, url, data, headers)
        self.headers: dict[str, str] = {}
        self.content = self

    async def __aenter__(self) -> "_Answer":
        client, url, data, headers = self._call
        try:
            self._given = await client.post(url, json=json.loads(data), headers=headers)
        except httpx.TimeoutException:
            raise TimeoutError from None
        except httpx.TransportError as error:
            raise aiohttp.ClientConnectionError(str(error)) from None
        self.status = self._given.status_code
        return self

    async def __aexit__(self, *exc: Any) -> None:
        pass

    async def iter_any(self) -> Any:
        """Yield the body. A mock whose text was not set has JSON."""
        text = self._given.text
        body = self._given.json() if not isinstance(text, str) else text
        yield (body if isinstance(body, str) else json.dumps(body, default=str)).encode()


class _Session:
    """The session of OsmosisLLMClient, whose calls go to the tests' client."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def request(self, method: str, url: Any, data: bytes, headers: Any, **options: Any) -> _Answer:
        """Return the answer to a POST."""
        return _Answer(self.client, str(url), data, headers)

    async def close(self) -> None:
        """Close the tests' client."""
        await self.client.aclose()


def _client(client: Any) -> Any:
    session = client._calls._session
    return session.client if isinstance(session, _Session) else session


def _set_client(client: Any, value: Any) -> None:
    client._calls._session = _Session(value)


def _count(name: str) -> property:
    """Return a count of a context, which is that of its session."""
    return property(lambda ctx: getattr(ctx._own, name), lambda ctx, value: setattr(ctx._own, name, value))


def _begin(init: Any) -> Any:
    def begin(ctx: Any, *args: Any, _start_time: float = 0.0, **options: Any) -> None:
        init(ctx, *args, **options)

    return begin


def install() -> None:
    """Put the names where the tests look for them."""
    names: dict[str, Any] = {
        "_num_tool_calls": _count("_tool_calls"),
        "_tool_latency_ms": _count("_tool_latency_ms"),
        "_build_metrics": lambda ctx: ctx._own.metrics(),
        "_debug_dir": None,
        "__init__": _begin(RolloutContext.__init__),
    }
    for name, value in names.items():
        setattr(RolloutContext, name, value)
    OsmosisLLMClient._client = property(_client, _set_client)  # type: ignore[attr-defined]
    registry._REGISTRY = sdk_functions._shared  # type: ignore[attr-defined]
    older_paths.get = get
    sys.meta_path.append(AbsentModules())


_reports: list[tuple[str, str, str]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the outcome of a test: of its call, or of what failed or was skipped before."""
    if report.when == "call" or (report.when == "setup" and not report.passed):
        _note(report.nodeid, report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that fails or is skipped as a whole."""
    if not report.passed:
        _note(report.nodeid, report)


def _note(node: str, report: Any) -> None:
    reason = report.longrepr[2].removeprefix("Skipped: ") if report.skipped else ""
    _reports.append((node, report.outcome, reason))


def pytest_sessionfinish() -> None:
    """Write the outcomes to the file that the variable SDK_REPORT names."""
    Path(os.environ["SDK_REPORT"]).write_text(json.dumps(_reports))


_get = older_paths.get
install()
