"""Fixtures of the attach tests."""

from typing import Any

import pytest

from osmosis_grpc.network import channel_options
from osmosis_grpc.network.dialled_stream import redial


@pytest.fixture
def quick_redial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer dials again at once: pauses that grow are not what is tested here."""

    async def quick(connect: Any, ended: Any, **options: Any) -> None:
        await redial(connect, ended, **{**options, "pauses": (0.02, 0.2)})

    monkeypatch.setattr("osmosis_grpc.trainer.transports.transport.redial", quick)
    for name in ("initial", "min", "max"):
        monkeypatch.setitem(channel_options.CLIENT_DEFAULTS, f"grpc.{name}_reconnect_backoff_ms", 200)
