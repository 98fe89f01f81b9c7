"""scripts/lint_tests.py finds private attributes, sleeps and eval() in tests."""

import importlib.util

import pytest

from tests.processes import ROOT

LINT = ROOT / "scripts" / "lint_tests.py"


def problems(source):
    spec = importlib.util.spec_from_file_location("lint_tests", LINT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [(rule, name) for _, rule, name in module.problems(source)]


FORBIDDEN = {
    "trainer._pool": ("private", "_pool"),
    "trainer._pool = None": ("private", "_pool"),
    "monkeypatch.setattr(server, '_tick', 1)": ("private", "_tick"),
    "monkeypatch.setattr('osmosis_grpc.network.tls._TICK', 1)": ("private", "osmosis_grpc.network.tls._TICK"),
    "getattr(server, '_tick')": ("private", "_tick"),
    "from osmosis_grpc.network import _stream": ("private", "_stream"),
    "await asyncio.sleep(0.1)": ("sleep", "sleep"),
    "time.sleep(pause)": ("sleep", "sleep"),
    "page.wait_for_function('ready')": ("eval", "wait_for_function"),
}


@pytest.mark.parametrize("source", FORBIDDEN)
def test_a_problem_is_found(source):
    assert problems(source) == [FORBIDDEN[source]]


@pytest.mark.parametrize(
    "source",
    [
        "self._pool",
        "super()._pool",
        "os._exit(1)",
        "server.__dict__",
        "await asyncio.sleep(0)",
        "await asyncio.sleep(3600)",
        "await asyncio.sleep(0.1)  # two heartbeats",
        "from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2",
    ],
)
def test_what_is_allowed_is_not_found(source):
    assert problems(source) == []
