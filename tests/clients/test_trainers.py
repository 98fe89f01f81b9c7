"""The trainers of clients/ run the calculator agent through breaks, as this project's own trainer does without."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from osmosis_grpc.trainer import RolloutClient
from tests.attach.cutting_proxy import CuttingProxy
from tests.clients.builds import BUILDS, program
from tests.clients.client_process import SCRIPT, SCRIPTED, ClientProcess
from tests.clients.scripted import by_rollout, python_outcomes
from tests.ports import quiet_port
from tests.processes import ROOT, server_process
from tests.waiting import until

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]
CUTS = (1, 3, 5, 8, 10)
"""The connections are cut when this many of the 12 chats have begun."""
Program = Callable[[str], list[str]]


@pytest.fixture(scope="module", params=list(BUILDS))
def client(request) -> Program:
    """The programs of one client."""
    return program(request.param)


@pytest.fixture
def calculator() -> Iterator[str]:
    """The address of a process that serves examples/calculator."""
    with server_process("-m", "server:agent_loop", cwd=ROOT / "examples" / "calculator") as (_, address):
        yield address


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """The outcomes of this project's trainer, without a break."""
    with server_process("-m", "server:agent_loop", cwd=ROOT / "examples" / "calculator") as (_, address):
        return asyncio.run(python_outcomes(address))


async def cut_five_times(client: ClientProcess, *proxies: CuttingProxy) -> None:
    for chats in CUTS:
        open_chats = lambda chats=chats: len(client.events("sampled")) >= chats and proxies[0].connections  # noqa: E731
        await until(open_chats, f"{chats} chats have begun, and there is a connection")
        assert sum(proxy.cut() for proxy in proxies) > 0


async def assert_outcomes(client: ClientProcess, expected: dict[str, Any]) -> None:
    await until(lambda: len(client.events("outcome")) == len(SCRIPTED), "all outcomes", timeout=60)
    assert await client.leave() == 0
    sampled = [(each["rollout_id"], each["sample"], each["chat_number"]) for each in client.events("sampled")]
    assert sorted(sampled) == sorted(
        (rollout_id, "main", n) for rollout_id, script in SCRIPTED.items() for n in range(1, len(script["replies"]) + 1)
    ), "each chat is sampled once"
    assert by_rollout(client.events("outcome")) == expected
    assert {each["reward"] for each in expected.values()} == {0.0, 1.0}


async def test_five_breaks_of_a_stream_change_nothing(client, calculator, expected):
    async with CuttingProxy(calculator) as proxy:
        arguments = ("--mode", "attach", "--target", proxy.address, "--script", str(SCRIPT))
        async with ClientProcess(client("trainer"), *arguments) as process:
            await cut_five_times(process, proxy)
            await assert_outcomes(process, expected)


@pytest.mark.parametrize("history", ["delta", "full"])
async def test_five_breaks_of_all_callback_connections_change_nothing(client, calculator, expected, history):
    listen = f"127.0.0.1:{quiet_port()}"
    async with CuttingProxy(calculator) as proxy, CuttingProxy(listen) as back:
        addresses = ("--target", proxy.address, "--listen", listen, "--advertise", back.address)
        arguments = ("--mode", "callback", *addresses, "--script", str(SCRIPT), "--history", history)
        async with ClientProcess(client("trainer"), *arguments) as process:
            await cut_five_times(process, back, proxy)
            await assert_outcomes(process, expected)


@pytest.mark.parametrize("mode", ["attach", "callback"])
async def test_an_init_with_a_wrong_field_is_refused_and_one_during_a_drain_waits(serve, client, mode):
    server = await serve()
    await server.drain()
    arguments = ("--mode", mode, "--target", server.address)
    async with (
        ClientProcess(client("trainer"), *arguments, "--prefix", "a/b") as wrong,
        ClientProcess(client("trainer"), *arguments, "--script", str(SCRIPT)) as early,
    ):
        known = lambda: len(server.attachments.attached) + server.engine.acceptance.rejected.total() >= 2  # noqa: E731
        await until(known, "both have attached, or their Inits were refused")
        await server.end_drain()
        await until(lambda: wrong.events("refused"), "the wrong Init was refused")
        refused = {"event": "refused", "rollout_id": "a/b-1", "status": "INVALID_ARGUMENT", "reason": "INVALID_FIELD"}
        assert wrong.lines == [refused]
        await until(lambda: len(early.events("outcome")) == len(SCRIPTED), "all outcomes", timeout=60)
        assert await asyncio.gather(wrong.leave(), early.leave()) == [0, 0]


@pytest.mark.parametrize("mode", ["attach", "callback"])
async def test_a_cancel_stops_the_sampler(serve, client, mode):
    server = await serve()
    arguments = ("--mode", mode, "--target", server.address, "--script", str(SCRIPT))
    async with ClientProcess(client("trainer"), *arguments) as process:
        await until(lambda: len(process.events("sampled")) >= 1)
        async with RolloutClient(server.address) as operator:
            await operator.cancel(everything=True)
        await until(lambda: len(process.events("outcome")) == len(SCRIPTED), "all outcomes")
        await until(lambda: process.events("stopped"), "a stop has reached the policy")
        assert {each["status"] for each in process.events("outcome")} == {"CANCELLED"}
        assert await process.leave() == 0


async def test_the_calculator_example_runs(client, calculator):
    process = await asyncio.create_subprocess_exec(*client("calculator"), calculator, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    status, segment = out.decode().splitlines()
    assert status.endswith(("COMPLETED reward 1", "COMPLETED reward 1.0"))
    assert segment.startswith("22 tokens, mask runs [")
