"""ping says whether a server is ready, and call calls any method with JSON."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from osmosis_grpc.protocol.types.server_info import ServerInfo
from osmosis_grpc.protocol.wire import control
from osmosis_grpc.protocol.wire.methods import METHODS
from osmosis_grpc.server import AgentServer, ServerSecurity
from osmosis_grpc.testing.calculator import CalculatorAgent
from tests.cli.in_process import command
from tests.ports import quiet_port
from tests.processes import run

TOKEN = "secret-of-the-caller"


@pytest.fixture
async def serve():
    async with AsyncExitStack() as stack:

        async def started(*tokens):
            server = AgentServer([CalculatorAgent()], port=0, security=ServerSecurity(tokens))
            return await stack.enter_async_context(server)

        yield started


async def process(*arguments):
    """Run a command as a process, which may write records."""
    return await asyncio.to_thread(run, "-m", "osmosis_grpc", *arguments)


async def test_ping_has_health_version_limits_and_clock(serve):
    server = await serve()
    done = await command("ping", server.address)
    assert (done.exit_code, done.stderr) == (0, "")
    first, *lines = done.stdout.splitlines()
    assert first == f"{server.address} is ready"
    rows = dict(line.split(maxsplit=1) for line in lines)
    assert rows["health"] == "SERVING"
    assert rows["version"].endswith(", protocol 1")
    assert rows["agents"] == "calculator"
    assert rows["limits"] == "messages of 64 MiB, agents of 1800 s"
    assert rows["clock"] == "the same as here"
    assert rows["round"].endswith(" ms")


async def test_ping_as_a_record_tells_a_drain(serve):
    server = await serve()
    await server.drain()
    done = await process("ping", server.address, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    record = json.loads(done.stdout)
    assert (record["event"], record["ready"], record["health"]) == ("ping", False, "NOT_SERVING")
    assert record["problem"].startswith("it drains")
    assert abs(record["clock_skew"]) <= record["round_trip"]
    assert record["limits"]["max_message_bytes"] == 64 * 1024 * 1024


async def test_ping_tells_another_clock_and_another_protocol(serve, monkeypatch):
    server = await serve()
    convert = control.SERVER_INFO.to_wire

    def changed(info: ServerInfo):
        answer = convert(info)
        answer.current_time.seconds -= 90
        answer.protocol_min = answer.protocol_max = 7
        return answer

    monkeypatch.setattr(control.SERVER_INFO, "to_wire", changed)
    done = await command("ping", server.address)
    assert done.exit_code == 1
    assert f"{server.address} is not ready: it speaks protocol 7, and this version 1 to 1\n" in done.stdout
    assert " s behind the clock here" in done.stdout


WRONG_PINGS = {
    "not an address": (["here"], "ping: here is not HOST:PORT\n"),
    "two addresses": (["a:1", "--server", "here:1"], "ping: HOST:PORT and --server exclude each other"),
    "away": ([f"127.0.0.1:{quiet_port()}"], "ping: the server 127.0.0.1:"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG_PINGS.values(), ids=WRONG_PINGS)
async def test_ping_without_an_answer_is_code_2(arguments, said):
    done = await command("ping", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


async def test_ping_without_the_token_is_code_2(serve):
    done = await command("ping", (await serve(TOKEN)).address)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--token-file FILE" in done.stderr


async def test_call_prints_the_reply_as_json(serve, tmp_path):
    server = await serve(TOKEN)
    (tmp_path / "token").write_text(TOKEN)
    where = ("--server", server.address, "--token-file", str(tmp_path / "token"))
    done = await command("call", "GetServerInfo", *where)
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["agentLoops"][0]["name"] == "calculator"
    (tmp_path / "request.json").write_text('{"rollout_id": "r", "spec": {"agent_loop": "no such"}}')
    for data, given in ((f"@{tmp_path}/request.json", None), ("-", (tmp_path / "request.json").read_text())):
        done = await command("call", "Init", "--data", data, *where, given=given)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith("call: Init: INVALID_ARGUMENT, reason INVALID_FIELD: ")
    full = await command("call", "osmosis.rollout.v1.RolloutService/ListRollouts", *where)
    assert json.loads(full.stdout) == {}


async def test_a_refused_call_is_a_record_with_its_fields(serve):
    server = await serve()
    done = await process("call", "GetRollout", "--json", "--server", server.address)
    assert done.returncode == 1
    assert json.loads(done.stdout) == {
        "event": "refused",
        "method": "GetRollout",
        "status": "INVALID_ARGUMENT",
        "reason": "INVALID_FIELD",
        "message": "rollout_id: has 0 characters, not 1 to 256",
        "fields": [{"field": "rollout_id", "problem": "has 0 characters, not 1 to 256"}],
        "retry_after": None,
    }


async def test_call_prints_a_line_for_each_reply_of_a_stream(serve):
    server = await serve()
    done = await command(
        "call", "StreamEvents", "--data", '{"fromNow": true}', "--timeout", "0.3", "--server", server.address
    )
    assert done.exit_code == 2
    (line,) = done.stdout.splitlines()
    assert set(json.loads(line)) == {"cursor", "idle"}


async def test_call_lists_the_methods():
    lines = (await command("call")).stdout.splitlines()
    assert "RolloutService/Init(InitRequest) returns (InitResponse)" in lines
    assert len(lines) == len([each for each in METHODS.values() if not each.streams_requests])


WRONG = {
    "method": (["getrollout"], "call: there is no method getrollout; is GetRollout meant?"),
    "stream": (["Attach"], "call: Attach is a stream of requests; call sends one request"),
    "service": (["TrainerService/Init"], "call: there is no method TrainerService/Init"),
    "json": (["Init", "--data", "{"], "call: --data does not fit InitRequest: Failed to load JSON"),
    "list": (["Init", "--data", "[]"], "call: --data does not fit InitRequest: it is not a JSON object\n"),
    "field": (["Init", "--data", '{"\\u001b[2Jx": 1}'], "call: --data does not fit InitRequest: Message type"),
    "file": (["Init", "--data", "@none"], "call: --data: @none cannot be read: "),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
async def test_a_wrong_call_is_one_line_and_code_2(arguments, said):
    done = await command("call", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert done.stderr.removesuffix("\n").isprintable()
