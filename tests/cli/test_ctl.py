"""ctl cancels rollouts of a running server, drains it, and prints its configuration."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.server import AgentServer, ServerSecurity
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.cli.in_process import command
from tests.ports import quiet_port
from tests.processes import run
from tests.waiter import Waiter

ADMIN, CALLER = "secret-of-the-administrator", "secret-of-the-caller"
QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]


class WithTool(Waiter):
    """Has a tool, and runs until the test releases it."""

    def get_tools(self, request):
        return [{"type": "function", "function": {"name": "wait", "description": "d", "parameters": {}}}]


class Served:
    """A server, its agent, and a trainer that has started rollouts."""

    def __init__(self, server, agent, trainer):
        self.server, self.agent, self.trainer = server, agent, trainer

    async def start(self, *names, token=""):
        async with RolloutClient(self.server.address, token=token) as client:
            for name in names:
                await client.init(rollout_id=name, messages=QUESTION, callback=self.trainer.callback())

    async def ctl(self, *arguments):
        return await command("ctl", *arguments, "--server", self.server.address)


@pytest.fixture
async def serve():
    async with AsyncExitStack() as stack:

        async def started(*tokens, admin=()):
            agent = WithTool()
            security = ServerSecurity(tokens, admin_tokens=admin)
            server = await stack.enter_async_context(AgentServer([agent], port=0, security=security))
            return Served(server, agent, await stack.enter_async_context(CallbackTrainer(ToolCallingMock())))

        yield started


async def test_cancel_says_what_became_of_each_rollout(serve):
    served = await serve()
    await served.start("a", "b", "c", "d")
    done = await served.ctl("cancel", "a", "none", "--reason", "it hangs")
    assert (done.exit_code, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "a: cancelled",
        "none: the server does not know it; if it comes within 10 minutes, it ends at once",
    ]
    assert (await served.trainer.outcome("a")).status is OutcomeStatus.CANCELLED
    again = await served.ctl("cancel", "a", "--attempt", "1")
    assert (again.exit_code, again.stdout) == (0, "a: nothing changed, it had ended CANCELLED\n")
    assert "it hangs" in (await command("events", "a", "--from", served.server.address)).stdout
    assert (await served.ctl("cancel", "--group", "g")).stdout == "no rollout is unfinished\n"
    assert (await served.ctl("cancel", "--prefix", "e")).stdout == "no rollout is unfinished\n"
    assert (await served.ctl("cancel", "--prefix", "b")).stdout == "b: cancelled\n"
    found = await asyncio.to_thread(
        run, "-m", "osmosis_grpc", "ctl", "cancel", "--all", "--json", "--server", served.server.address
    )
    records = [json.loads(line) for line in found.stdout.splitlines()]
    assert {record["event"] for record in records} == {"cancel"}, found.stderr
    assert [(row["rollout_id"], row["disposition"]) for row in records] == [(name, "CANCELLED") for name in "cd"]


async def test_drain_waits_until_no_work_is_left(serve):
    served = await serve()
    await served.start("a")
    done = await served.ctl("drain", "--timeout", "0")
    assert (done.exit_code, done.stdout, done.stderr) == (
        1,
        "draining: 1 running, 0 queued, 0 ended without a receipt of the trainer\n",
        "ctl drain: work is left; the drain goes on, and --undo ends it\n",
    )
    assert "  draining, started " in (await served.ctl("config")).stdout
    assert (await served.ctl("drain", "--undo")).stdout == "the server accepts new rollouts again\n"
    assert "  accepts rollouts, started " in (await served.ctl("config")).stdout
    waiting = asyncio.create_task(served.ctl("drain"))
    served.agent.go.set()
    done = await waiting
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].startswith("drained: the server has no work and accepts none")


async def test_drain_needs_the_token_of_an_administrator(serve):
    served = await serve(CALLER, admin=[ADMIN])
    done = await served.ctl("drain", "--token", CALLER)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ctl drain: the server {served.server.address} refuses this caller: ")
    assert "needs an administrator's token" in done.stderr
    assert done.stderr.count("\n") == 1
    assert (await served.ctl("drain", "--token", ADMIN)).exit_code == 0
    shown = (await served.ctl("config", "--token", ADMIN)).stdout
    assert ADMIN not in shown
    assert CALLER not in shown


async def test_config_has_agents_features_limits_and_times(serve):
    served = await serve()
    lines = (await served.ctl("config")).stdout.splitlines()
    assert lines[0].startswith(f"server {served.server.address}, version ")
    assert max(map(len, lines[:1] + lines[3:])) <= 80
    assert {"agent loops", "features", "load", "limits"} < set(lines)
    assert any(line.startswith("  waiter version ") and line.endswith(", tools: wait") for line in lines)
    rows = dict(line.split(maxsplit=1) for line in lines[3:] if line.startswith("  "))
    assert rows["max_concurrent"] == "100"
    assert rows["agent_timeout"] == "1800 s"
    assert rows["max_message_bytes"].endswith(" (64 MiB)")


WRONG = {
    "nothing": (["cancel"], "ctl cancel: name rollouts, a group with --group, the beginning of"),
    "no id": (["cancel", ""], "ctl cancel: name rollouts, a group"),
    "both": (["cancel", "a", "--all"], "ctl cancel: name rollouts, a group"),
    "attempt": (["cancel", "--all", "--attempt", "2"], "ctl cancel: --attempt goes with a rollout\n"),
    "server": (["drain", "--server", "here"], "ctl drain: here is not HOST:PORT\n"),
    "token": (["config", "--server", "10.0.0.1:1", "--token", "t"], "ctl config: 10.0.0.1:1 is not loopback"),
    "folder": (["cancel", "a", "--state-dir", "x"], "Usage: "),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
async def test_a_wrong_option_of_ctl_is_code_2(arguments, said):
    done = await command("ctl", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(said)


async def test_a_server_that_is_away_is_one_line():
    address = f"127.0.0.1:{quiet_port()}"
    done = await command("ctl", "config", "--server", address)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ctl config: the server {address} refuses connections; ")
    assert done.stderr.count("\n") == 1
