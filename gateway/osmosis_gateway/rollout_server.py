"""create_rollout_server: the application of a workflow or of Harbor tasks, for the Osmosis SDK's entry points."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from fastapi import FastAPI

from osmosis_gateway.app import agent_app
from osmosis_gateway.leases import LeaseTimes
from osmosis_grpc.compat.backends import ExecutionBackend
from osmosis_grpc.engine import EngineConfig
from osmosis_grpc.network.bearer_tokens import Tokens, check_token
from osmosis_grpc.network.target_policy import TargetPolicy
from osmosis_grpc.settings.settings import get_settings

LIFE = LeaseTimes()


def create_rollout_server(
    *,
    backend: ExecutionBackend,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[Any]] | None = None,
    configure_logging: bool = True,
    result_wait_timeout_sec: float = LIFE.wait,
    polling_lease_timeout_sec: float = LIFE.lease,
    result_retention_sec: float = LIFE.keep,
    api_key: str | None = None,
    allow_target: Sequence[str] = (),
) -> FastAPI:
    """Return an application for uvicorn that serves a backend's agent to trainers of all versions.

    It keeps its rollouts in memory. `osmosis-grpc serve -m main.py` serves the same file with a journal, TLS and gRPC.
    Without a token, it serves only callers on this machine.

    Args:
        backend: A LocalBackend or a HarborBackend.
        lifespan: Returns an async context manager, which is open while the application runs.
        configure_logging: Whether the root logger gets a handler for INFO if it has none.
        result_wait_timeout_sec: The longest time until a poll is answered.
        polling_lease_timeout_sec: The longest time until the next poll. After it, the rollout fails.
        result_retention_sec: How long a result waits for its trainer.
        api_key: The token that callers must send. It replaces the tokens of the settings.
        allow_target: Further addresses that rollouts may call: HOST, HOST:PORT or a network.

    Raises:
        TypeError: The backend is neither a LocalBackend nor a HarborBackend.
        ValueError: The key or a time cannot be used.
    """
    times = LeaseTimes(wait=result_wait_timeout_sec, lease=polling_lease_timeout_sec, keep=result_retention_sec)
    if not 0 < times.wait < times.lease or not times.keep > 0:
        raise ValueError("result_wait_timeout_sec: has to be above 0 and below polling_lease_timeout_sec")
    if not isinstance(backend, ExecutionBackend):
        raise TypeError(f"backend: is a {type(backend).__name__}; pass a LocalBackend or a HarborBackend")
    if type(backend).open is ExecutionBackend.open:
        backend.open()  # raises
    if configure_logging and not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO)
    known = get_settings()
    limit = known.server.max_concurrent_rollouts
    config = EngineConfig(
        max_concurrent=limit if backend.max_concurrent is None else min(limit, backend.max_concurrent),
        record_ttl=known.server.record_ttl_seconds,
    )
    return agent_app(
        backend.name,
        backend.open,
        config,
        known,
        tokens=None if api_key is None else Tokens(f"api={check_token(api_key)}"),
        policy=TargetPolicy(loopback=False, allow=allow_target, option="create_rollout_server(allow_target=[...])"),
        lifespan=lifespan or (lambda app: nullcontext()),
        times=times,
    )
