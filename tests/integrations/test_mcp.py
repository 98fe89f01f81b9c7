"""The tools of MCP servers: real servers, as processes and over HTTP."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.validator import validate_agent_loop
from osmosis_grpc.integrations._mcp_connection import without_secrets
from osmosis_grpc.integrations.mcp import mcp_tools, text_of
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import Internal, ToolExecutionError
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.rollout import rollout_agent, tool
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.trainer import Trainer
from tests.ports import quiet_port
from tests.processes import run, server_process
from tests.waiting import until, wait_until

pytestmark = [pytest.mark.adapters, pytest.mark.timeout(120)]

SERVER = str(Path(__file__).with_name("mcp_server.py"))
COMMAND = [sys.executable, SERVER]
NAMES = ["add", "count", "fail", "slow", "die", "draw_dot", "variables", "point"]
USER = {"role": "user", "content": "?"}


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def http_server(port):
    with subprocess.Popen([*COMMAND, str(port)]) as process:
        try:
            wait_until(lambda: listens(port))
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


@pytest.fixture(params=["stdio", "http"])
def server(request):
    """What mcp_tools() takes for a server that runs."""
    if request.param == "stdio":
        yield COMMAND
        return
    with http_server(quiet_port()) as url:
        yield url


def by_name(tools):
    return {each.name: each for each in tools}


async def test_tools_have_schemas_and_results(server):
    async with mcp_tools(server) as tools:
        known = by_name(tools)
        assert list(known) == NAMES
        function = known["add"].openai_schema()["function"]
        assert function["description"] == "Adds two numbers."
        assert function["parameters"]["required"] == ["a", "b"]
        assert await known["add"].run({"a": 1, "b": 2}) == "3.0"
        assert await known["draw_dot"].run({}) == "[image: image/png, 4 bytes]"
        assert '"y"' in await known["point"].run({})
        with pytest.raises(ToolExecutionError, match="on purpose"):
            await known["fail"].run({"why": "on purpose"})
        with pytest.raises(ToolExecutionError):
            await known["add"].run({"a": "no number"})
        assert await asyncio.gather(*(known["add"].run({"a": n, "b": 0}) for n in range(20))) == [
            f"{n}.0" for n in range(20)
        ]


async def test_a_call_has_a_timeout_and_the_session_goes_on(server):
    async with mcp_tools(server, timeout=0.3) as tools:
        known = by_name(tools)
        with pytest.raises(TimeoutError, match=r"slow took longer than 0\.3 s"):
            await known["slow"].run({})
        mine = mcp_tools(server)
        try:
            assert (await by_name(await mine.rollout_tools())["add"].run({"a": 1, "b": 2})) == "3.0"
        finally:
            await mine.close()


async def test_a_process_gets_no_other_variables(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    async with mcp_tools(COMMAND, env={"MINE": "1"}) as tools:
        found = (await by_name(tools)["variables"].run({})).split()
    assert "MINE" in found
    assert "OPENAI_API_KEY" not in found


async def test_a_lost_server_is_an_error_and_the_next_call_starts_another_one():
    server = mcp_tools(COMMAND)
    try:
        known = by_name(await server.rollout_tools())
        first = await known["count"].run({})
        waiting = asyncio.create_task(known["slow"].run({}))
        with pytest.raises(ToolExecutionError, match="was lost"):
            await known["die"].run({})
        with pytest.raises(ToolExecutionError, match="was lost"):
            await waiting
        second = await known["count"].run({})
        assert (first.split()[1], second.split()[1]) == ("1", "1")
        assert first != second, "another process"
    finally:
        await server.close()


async def test_a_lost_server_of_one_rollout_stays_lost():
    async with mcp_tools(COMMAND) as tools:
        known = by_name(tools)
        for name in ("die", "count"):
            with pytest.raises(ToolExecutionError, match="was lost"):
                await known[name].run({})


async def test_an_http_server_that_was_lost_is_found_again():
    port = quiet_port()
    server = mcp_tools(f"http://127.0.0.1:{port}/mcp")
    try:
        with http_server(port):
            known = by_name(await server.rollout_tools())
            await known["count"].run({})
        with pytest.raises(ToolExecutionError):
            await known["count"].run({})
        with http_server(port):
            assert (await known["count"].run({})).endswith(" 1")
    finally:
        await server.close()


async def test_a_server_that_does_not_answer_is_given_up(tmp_path):
    (tmp_path / "mute.py").write_text("import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)")
    mute = mcp_tools([sys.executable, "mute.py"], cwd=str(tmp_path), connect_timeout=1.0)
    label = r"the MCP server python mute\.py cannot be reached: no answer within 1 s"
    for _ in range(2):  # a second rollout connects again
        with pytest.raises(ToolExecutionError, match=label):
            await asyncio.wait_for(mute.rollout_tools(), 30)
        pid = int((tmp_path / "pid").read_text())
        await until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
    with socket.create_server(("127.0.0.1", 0)) as mute_socket:
        url = f"http://127.0.0.1:{mute_socket.getsockname()[1]}/mcp"
        with pytest.raises(ToolExecutionError, match="cannot be reached: no answer within"):
            async with mcp_tools(url, connect_timeout=0.5):
                pass


async def test_a_block_has_one_connection_that_ends_with_it():
    mine = mcp_tools(COMMAND)
    async with mine as tools:
        with pytest.raises(RuntimeError, match="is in use; call mcp_tools"):
            await mine.__aenter__()
        count = by_name(tools)["count"]
        pid = (await count.run({})).split()[0]
    with pytest.raises(ToolExecutionError, match=r"is closed: its `async with` has ended"):
        await count.run({})
    with pytest.raises(ToolExecutionError, match="is closed"):
        await mine.rollout_tools()
    async with mine as tools:
        assert (await by_name(tools)["count"].run({})).split()[0] != pid


@pytest.mark.parametrize(
    ("server", "label"),
    [
        ("http://user:canary@127.0.0.1:9/mcp?key=canary", "http://127.0.0.1:9/mcp"),
        (["no-such-program", "--token", "canary"], "no-such-program"),
        ([sys.executable, "-c", "raise SystemExit('canary'[:0])"], "python"),
        ([sys.executable, "-m", "no_such_module", "canary"], "python -m no_such_module"),
    ],
)
async def test_no_secret_is_in_the_error_of_a_server_that_was_never_there(server, label, caplog):
    with pytest.raises(ToolExecutionError) as caught:
        await mcp_tools(server).rollout_tools()
    assert str(caught.value).startswith(f"the MCP server {label} cannot be reached: ")
    assert "canary" not in str(caught.value)
    assert "osmosis" not in caplog.text


def test_the_urls_in_errors_have_no_secrets():
    text = "Client error '401' for url 'https://user:pw@host:1/mcp?key=1#x' (see http://other/a)"
    assert without_secrets(text) == "Client error '401' for url 'https://host:1/mcp' (see http://other/a)"


async def test_python_is_the_servers_unless_an_environment_is_activated(monkeypatch):
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    async with mcp_tools(["python", SERVER]) as tools:
        assert by_name(tools)


async def test_no_process_is_left():
    async with mcp_tools(COMMAND) as tools:
        pid = int((await by_name(tools)["count"].run({})).split()[0])
        os.kill(pid, 0)
    await until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize(
    "server", ["no-such-program", [sys.executable, "-c", "raise SystemExit(3)"], "http://127.0.0.1:9"]
)
async def test_a_server_that_cannot_be_reached_refuses_the_rollout(server):
    class Agent(RolloutAgentLoop):
        name = "agent"
        tools = (mcp_tools(server),)

        async def run(self, ctx):
            return ctx.complete([])

    with pytest.raises(Internal, match="the MCP server"):
        await run_rollout(Agent(), lambda request: answer(request, ""), [USER])


@tool
async def double(number: float) -> float:
    """Doubles a number."""
    return 2 * number


def calls(*wanted):
    """A policy whose first reply has these calls."""

    def reply(request):
        if request.chat_number > 1:
            return answer(request, "done")
        listed = [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(wanted)
        ]
        return answer(request, {"role": "assistant", "content": None, "tool_calls": listed})

    return reply


async def finish(ctx, tools=None):
    messages = [USER]
    while True:
        reply = await ctx.chat(messages, tools=tools)
        messages.append(reply.message)
        if not reply.has_tool_calls:
            return ctx.complete(messages)
        messages += await ctx.run_tools(reply)


def results(outcome):
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    return [message["content"] for message in outcome.messages if message["role"] == "tool"]


async def test_one_connection_serves_all_rollouts_of_a_server(server):
    class Agent(RolloutAgentLoop):
        name = "agent"
        tools = (double, mcp_tools(server, prefix="n_"))

        async def run(self, ctx):
            assert [schema["function"]["name"] for schema in ctx.tools] == ["double", *(f"n_{name}" for name in NAMES)]
            return await finish(ctx)

    policy = calls(("double", '{"number": 2}'), ("n_count", "{}"), ("n_fail", '{"why": "because"}'))
    async with AgentServer([Agent()], port=0) as agent_server, Trainer([agent_server.address], policy) as trainer:
        outcomes = await asyncio.gather(*(trainer.rollout(rollout_id=f"r{n}", messages=[USER]) for n in range(8)))
    told = [results(outcome) for outcome in outcomes]
    assert {texts[0] for texts in told} == {"4.0"}
    assert len({texts[1].split()[0] for texts in told}) == 1, "one process"
    assert sorted(int(texts[1].split()[1]) for texts in told) == list(range(1, 9))
    assert all(texts[2].startswith("Error: ") and "because" in texts[2] for texts in told)
    await Agent.tools[1].close()


async def test_a_rollout_can_have_a_server_of_its_own():
    class Agent(RolloutAgentLoop):
        name = "agent"

        async def run(self, ctx):
            async with mcp_tools(COMMAND) as tools:
                return await finish(ctx, tools)

    found = await asyncio.gather(*(run_rollout(Agent(), calls(("count", "{}")), [USER]) for _ in range(3)))
    counts = [results(outcome)[0].split() for outcome in found]
    assert {count for _, count in counts} == {"1"}
    assert len({pid for pid, _ in counts}) == 3


async def test_a_function_of_the_openai_package_has_the_tools():
    @rollout_agent("agent", tools=[mcp_tools(COMMAND)])
    async def agent(task, client):
        message = (await client.chat.completions.create(model="policy", messages=task.messages)).choices[0].message
        (told,) = await task.ctx.run_tools(message)
        return float(told["content"])

    assert (await run_rollout(agent, calls(("add", '{"a": 2, "b": 3}')), [USER])).reward == 5.0


def test_the_validator_lists_the_tools_and_the_loop_ends_the_process(tmp_path):
    class Agent(RolloutAgentLoop):
        name = "agent"
        tools = (double, mcp_tools(COMMAND))

        async def run(self, ctx):
            return ctx.complete([])

    result = validate_agent_loop(Agent())
    assert (result.tool_count, result.findings) == (1 + len(NAMES), ())


def test_the_validator_names_a_server_that_cannot_be_reached(tmp_path):
    (tmp_path / "module.py").write_text(MODULE.format(command="no-such-program --token canary"))
    done = run("-m", "osmosis_grpc", "validate", "--run", "-m", "module:agent", cwd=tmp_path)
    message = "get_tools raised ToolExecutionError: the MCP server no-such-program cannot be reached: "
    assert message in done.stdout
    assert "lost" not in done.stdout + done.stderr
    assert "canary" not in done.stdout + done.stderr


def test_without_the_mcp_package_the_error_names_the_extra(tmp_path):
    (tmp_path / "mcp.py").write_text('raise ModuleNotFoundError("No module named mcp", name="mcp")\n')
    source = "from osmosis_grpc.integrations.mcp import mcp_tools; mcp_tools('x')"
    done = run("-c", source, cwd=tmp_path)
    assert "mcp_tools needs the extra 'mcp': pip install" in done.stderr


def test_other_content_is_named():
    blob = {"uri": "file:///x", "blob": "AAAA"}
    content = [
        {"type": "text", "text": "a"},
        {"type": "audio", "mimeType": "audio/wav", "data": "AAA="},
        {"type": "resource_link", "uri": "file:///y"},
        {"type": "resource", "resource": blob},
        {"type": "resource", "resource": {"uri": "file:///z", "text": "inner"}},
    ]
    lines = text_of({"content": content}).splitlines()
    assert lines == [
        "a",
        "[audio: audio/wav, 2 bytes]",
        "[resource: file:///y]",
        "[resource: file:///x, 3 bytes]",
        "inner",
    ]
    assert text_of({"content": [], "structuredContent": {"x": 1}}) == '{"x": 1}'


MODULE = """
from osmosis_grpc.integrations.mcp import mcp_tools
from osmosis_grpc.rollout import RolloutAgentLoop

class Agent(RolloutAgentLoop):
    name = "agent"
    tools = (mcp_tools({command!r}),)

    async def run(self, ctx):
        reply = await ctx.chat([{{"role": "user", "content": "?"}}])
        return ctx.complete(extra_fields={{"told": (await ctx.run_tools(reply))[0]["content"]}})

agent = Agent()
"""


async def test_no_secret_of_a_url_is_in_the_log_of_serve(tmp_path):
    with http_server(quiet_port()) as url:
        secret = f"{url.replace('//', '//user:canary@')}?key=canary"
        (tmp_path / "module.py").write_text(MODULE.format(command=secret))
        arguments = ("-m", "module:agent", "--no-validate", "--no-journal", "--log-level", "debug")
        with server_process(*arguments, cwd=tmp_path) as (process, address):
            async with Trainer([address], calls(("count", "{}"))) as trainer:
                outcome = await trainer.rollout(rollout_id="r1", messages=[USER])
            process.send_signal(signal.SIGTERM)
            out, err = await asyncio.to_thread(process.communicate)
    assert outcome.extra_fields["told"].endswith(" 1"), outcome.failure
    assert "serving agent" in err
    assert "canary" not in out + err


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_the_end_of_serve_ends_the_process(how, tmp_path):
    (tmp_path / "module.py").write_text(MODULE.format(command=COMMAND))
    arguments = "-m", "module:agent", "--state-dir", str(tmp_path / "state")
    with server_process(*arguments, cwd=tmp_path) as (process, address):
        async with Trainer([address], calls(("count", "{}"))) as trainer:
            outcome = await trainer.rollout(rollout_id="r1", messages=[USER])
        pid = int(outcome.extra_fields["told"].split()[0])
        os.kill(pid, 0)
        process.send_signal(how)
        await until(lambda: not Path(f"/proc/{pid}").exists())
