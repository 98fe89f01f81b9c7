"""What the tests of this room need."""

import importlib
from typing import Any

import pytest

from osmosis_grpc.link import options
from osmosis_grpc.link.stream import redial


@pytest.fixture
def quick_redial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer dials again at once: pauses that grow are not what is tested here."""
    module = importlib.import_module("osmosis_grpc.trainer.attach")

    async def quick(connect: Any, told: Any, **pauses: Any) -> None:
        await redial(connect, told, pauses=(0.02, 0.2))

    monkeypatch.setattr(module, "redial", quick)
    for name in ("initial", "min", "max"):
        monkeypatch.setitem(options._CLIENT, f"grpc.{name}_reconnect_backoff_ms", 200)
