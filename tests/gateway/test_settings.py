"""Every setting does what it says, wherever it was set: in code, in the environment, in .env."""

import asyncio
import itertools

import aiohttp
import pytest
from pydantic import ValidationError

from osmosis_gateway.http_server import serve_http
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.rollout.config import (
    RolloutClientSettings,
    RolloutServerSettings,
    RolloutSettings,
    configure,
    get_settings,
    reset_settings,
)
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.calculator import CalculatorAgent
from tests.gateway.legacy import LegacyTrainer
from tests.gateway.test_contract import gateway, health, init
from tests.waiting import until

BOUNDS = [
    ("CLIENT_TIMEOUT_SECONDS", "300.0", "1.0", "3600.0"),
    ("CLIENT_MAX_RETRIES", "3", "0", "10"),
    ("CLIENT_COMPLETE_ROLLOUT_RETRIES", "2", "0", "10"),
    ("CLIENT_RETRY_BASE_DELAY", "1.0", "0.1", "60.0"),
    ("CLIENT_RETRY_MAX_DELAY", "30.0", "1.0", "300.0"),
    ("CLIENT_MAX_CONNECTIONS", "100", "1", "100000"),
    ("CLIENT_MAX_KEEPALIVE_CONNECTIONS", "20", "0", "100000"),
    ("SERVER_MAX_CONCURRENT_ROLLOUTS", "100", "1", "10000"),
    ("SERVER_RECORD_TTL_SECONDS", "3600.0", "60.0", "86400.0"),
    ("SERVER_AGENT_TIMEOUT_SECONDS", "1800.0", "1.0", "604800.0"),
    ("SERVER_MAX_METADATA_SIZE_BYTES", "1048576", "1024", "104857600"),
]


@pytest.fixture(autouse=True)
def _own_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    reset_settings()


def value(settings, name):
    part, field = name.lower().split("_", 1)
    return str(getattr(getattr(settings, part), field))


@pytest.mark.parametrize(("name", "default", "least", "most"), BOUNDS)
def test_names_defaults_and_bounds(monkeypatch, name, default, least, most):
    assert value(RolloutSettings(), name) == default
    for good in (least, most):
        monkeypatch.setenv(f"OSMOSIS_ROLLOUT_{name}", good)
        assert value(get_settings(), name) == good
    for bad in (str(float(least) - 1), f"1{most}", "many", ""):
        monkeypatch.setenv(f"OSMOSIS_ROLLOUT_{name}", bad)
        with pytest.raises(ValidationError):
            RolloutSettings()


def test_configure_wins_over_both(monkeypatch):
    monkeypatch.setenv("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES", "2")
    configure(RolloutSettings(client=RolloutClientSettings(max_retries=9)))
    assert get_settings().client.max_retries == 9
    reset_settings()
    assert get_settings().client.max_retries == 2


@pytest.mark.parametrize("retries", [0, 2])
async def test_max_retries(retries):
    async with gateway(client=RolloutClientSettings(max_retries=retries, retry_base_delay=0.1)) as (
        _,
        trainer,
        session,
    ):
        trainer.chat_faults = [500] * 100
        await init(session, trainer.init_body())
        done = await trainer.completed()
    assert len(trainer.chats) == retries + 1
    assert done["status"] == "ERROR"


async def test_complete_rollout_retries_counts_the_immediate_retries_of_a_round():
    async def counted(retries):
        client = RolloutClientSettings(complete_rollout_retries=retries, retry_base_delay=0.1)
        async with gateway(client=client, outbox_delay=(60.0, 60.0)) as (_, trainer, session):
            trainer.complete_statuses = [500] * 100
            await init(session, trainer.init_body())
            await until(lambda: len(trainer.keys) >= 2 + retries + 1)
            await asyncio.sleep(0.5)  # a further try would come by then
            assert len(trainer.keys) == 2 + retries + 1
            assert (await health(session))["undelivered"] == 1

    await asyncio.gather(counted(0), counted(3))


@pytest.mark.slow
async def test_timeout_seconds():
    async with gateway(client=RolloutClientSettings(timeout_seconds=1.0, max_retries=0)) as (_, trainer, session):
        trainer.latency = 5.0
        await init(session, trainer.init_body())
        done = await trainer.completed()
    assert "within 1 s" in done["error_message"]


async def pauses(base, longest, faults):
    """How long the gateway waited before each try but the first."""
    client = RolloutClientSettings(retry_base_delay=base, retry_max_delay=longest, max_retries=len(faults))
    async with gateway(client=client) as (_, trainer, session):
        trainer.chat_faults = list(faults)
        await init(session, trainer.init_body())
        await trainer.completed()
    return [after - before for before, after in itertools.pairwise(trainer.times)]


async def test_half_of_retry_base_delay_is_the_least_of_the_first_pause():
    assert (await pauses(0.8, 30.0, [500]))[0] >= 0.39


async def test_retry_max_delay_bounds_the_pauses():
    slow = await pauses(0.8, 1.0, [500, 500])  # without the bound the second would be 1.6 s at least
    assert slow[1] < 1.6


async def test_max_connections_bounds_what_is_in_flight():
    async with gateway(client=RolloutClientSettings(max_connections=3)) as (_, trainer, session):
        trainer.latency = 0.1
        await asyncio.gather(*(init(session, trainer.init_body(f"r{i}")) for i in range(12)))
        await trainer.completed(12)
    assert trainer.most_in_flight == 3


@pytest.mark.parametrize(("kept", "most", "least"), [(0, 24, 24), (2, 20, 2), (50, 4, 1)])
async def test_max_keepalive_connections_bounds_what_is_kept(kept, most, least):
    """Four rollouts at once, three calls each: how many connections they came over."""
    client = RolloutClientSettings(max_keepalive_connections=kept)
    async with gateway(client=client) as (_, trainer, session):
        for part in range(2):
            before = len(trainer.outcomes)
            await asyncio.gather(*(init(session, trainer.init_body(f"r{part}-{i}")) for i in range(4)))
            await trainer.completed(before + 4)
    assert least <= len(trainer.peers) <= most


async def test_max_concurrent_rollouts_and_record_ttl_size_the_engine():
    from osmosis_grpc.rollout import create_app

    settings = RolloutSettings(server=RolloutServerSettings(max_concurrent_rollouts=7, record_ttl_seconds=61.0))
    app = create_app(CalculatorAgent(), settings=settings)
    async with app.router.lifespan_context(app):
        config = app.state.engine.config
        assert (config.max_concurrent, config.record_ttl) == (7, 61.0)
        assert app.state.engine.capacity().max_concurrent == 7


async def test_max_metadata_size_bytes():
    class Agent(RolloutAgentLoop):
        name = "a"

        def get_tools(self, request):
            return []

        async def run(self, ctx):
            return ctx.complete([])

    async with (
        AgentServer([Agent()], port=0, config=ServerConfig(max_metadata_bytes=2048)) as server,
        serve_http(server, port=0) as http,
        LegacyTrainer() as trainer,
        aiohttp.ClientSession(f"http://{http.address}") as session,
    ):
        small = await init(session, trainer.init_body("r1", metadata={"x": "y" * 2000}))
        large = await init(session, trainer.init_body("r2", metadata={"x": "y" * 2048}))
    assert (small[0], large[0]) == (202, 422)
    assert large[1]["detail"][0]["loc"] == ["body", "metadata"]
