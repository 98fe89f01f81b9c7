"""How each job outside of a server is made to run, and what its failure does: gateway, commands, log, policies."""

import asyncio
import logging
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from osmosis_gateway.leases import Leases, LeaseTimes
from osmosis_gateway.relay import Relay
from osmosis_grpc import supervise
from osmosis_grpc.agent.message_keys import History
from osmosis_grpc.agent.tool_calls import execute_tool_calls
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig
from osmosis_grpc.cli.daemon_thread import exit_after, run_in_daemon_thread
from osmosis_grpc.endpoints.endpoint_registry import Endpoints
from osmosis_grpc.endpoints.model_request import Asked, ModelRequest
from osmosis_grpc.endpoints.open_chats import OpenChats, Waits
from osmosis_grpc.integrations.mcp import McpTools
from osmosis_grpc.integrations.ray.actor import ServerProcess
from osmosis_grpc.network.http.connections import BoundedProtocol
from osmosis_grpc.network.http.server import HttpServer, http_app
from osmosis_grpc.policies import GenerateRequest, Sampling
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.policies.transformers import TransformersGenerator
from osmosis_grpc.protocol.errors import Internal, ToolExecutionError
from osmosis_grpc.protocol.types import ChatRequest, FailureReason, Group, OutcomeStatus
from osmosis_grpc.serve.rollout_log import RolloutLog
from osmosis_grpc.server import AgentServer
from osmosis_grpc.settings.logs import BackgroundHandler
from osmosis_grpc.supervise import DaemonThreads
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.tools.process import run_process
from osmosis_grpc.tools.sandbox import LocalSandbox, SandboxError
from osmosis_grpc.tools.workspace import Workspace
from osmosis_grpc.trainer import RolloutClient
from tests.agent.workflows.made import Asks, Ones, post
from tests.deployment import PATIENCE, USER, Talk
from tests.policies.byte_tokenizer import ByteTokenizer
from tests.policies.scripted_generator import generated, policy_of
from tests.processes import run


async def tool_call(h, fail):
    async def executor(call):
        return "5"

    fail()
    with pytest.raises(OSError, match="injected"):
        await execute_tool_calls([{"id": "c", "function": {"name": "add", "arguments": "{}"}}], executor)


async def sync_call(h, fail):
    class Blocks(Talk):
        def run(self, ctx):
            return ctx.complete([ctx.chat([USER]).message])

    fail()
    outcome = await run_rollout(Blocks(), EchoPolicy(), [USER])
    assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "agent")
    assert "injected" in outcome.failure.message


async def ask_chat(h, fail):
    class Asks(Talk):
        async def run(self, ctx):
            with Endpoints(lambda: "http://rollout.invalid").open(ctx) as endpoint:
                request = ModelRequest(messages=[USER], params={})
                chat = endpoint.ask(Asked(request=request, history=History.of([USER]), sample="", digest=b""))
                await chat.ended()
                chat.result()

    fail()
    outcome = await run_rollout(Asks(), EchoPolicy(), [USER])
    assert "injected" in outcome.failure.message


async def ask_choice(h, fail):
    class Asks(Talk):
        async def run(self, ctx):
            with Endpoints(lambda: "http://rollout.invalid").open(ctx) as endpoint:
                request = ModelRequest(messages=[USER], params={}, choices=2)
                chat = endpoint.ask(Asked(request=request, history=History.of([USER]), sample="", digest=b""))
                await chat.ended()
                chat.result()

    fail()
    outcome = await run_rollout(Asks(), EchoPolicy(), [USER])
    assert "injected" in outcome.failure.message


async def serve_endpoints(h, fail):
    """A request of the agent waits until the job runs again."""

    class OverHttp(Talk):
        async def run(self, ctx):
            reply = await asyncio.to_thread(post, ctx.chat_completions_url, ctx.api_key, "main")
            return ctx.complete([USER, {"role": "assistant", "content": reply}])

    fail()
    async with asyncio.timeout(PATIENCE):
        outcome = await run_rollout(OverHttp(), EchoPolicy(), [USER])
    assert outcome.status is OutcomeStatus.COMPLETED


async def grade_group(h, fail):
    """All rollouts of the group fail."""

    class Ranks(Ones):
        async def grade_group(self, contexts):
            raise AssertionError("it is not called")

    fail()
    callback = h.trainer.callback()
    async with (
        AgentServer([WorkflowRunnable(Asks, grader=Ranks)], port=0) as server,
        RolloutClient(server.address) as client,
    ):
        for index in range(2):
            request = {"rollout_id": f"g{index}", "group": Group("g", index, 2), "label": ""}
            await client.init(agent_loop="Asks", messages=[USER], callback=callback, **request)
        for index in range(2):
            failure = (await h.end(f"g{index}")).failure
            assert (failure.boundary, failure.reason) == ("grader", FailureReason.GRADER_EXCEPTION)
            assert "injected" in failure.message


async def drop_chat(h, fail):
    """The chat then ends with its rollout."""
    chats = OpenChats(Waits(retry=0.01))
    chat = chats.begin(b"", lambda wanted: asyncio.Event().wait())
    fail()
    chats.leave(chat)
    await h.until(lambda: h.failed("gateway.drop_chat"))
    chats.close()
    assert await chat.ended(PATIENCE)


async def mcp_connection(h, fail):
    async def connect(stack):
        return None

    fail()
    with pytest.raises(ToolExecutionError, match="injected"):
        await McpTools(connect, "the MCP server", "", 1.0, 1.0).rollout_tools()


async def demo(h, fail, name):
    source = (
        "import osmosis_grpc.cli.demo, sys\nfrom osmosis_grpc import supervise\n"
        f"supervise.inject({name!r}, OSError('injected'))\nsys.argv[1:] = ['demo']\n"
        "import runpy; runpy.run_module('osmosis_grpc', run_name='__main__')\n"
    )
    result = await asyncio.to_thread(run, "-c", source)
    assert result.returncode not in (0, -signal.SIGKILL)
    assert "injected" in result.stdout + result.stderr


async def run_in_a_thread(h, fail):
    async def main():
        return 5

    fail()
    with pytest.raises(OSError, match="injected"):
        await asyncio.to_thread(run_in_daemon_thread, main)


async def exit_late(h, fail):
    fail()
    with exit_after(0.0, "late"):
        await h.until(lambda: h.failed("cli.exit_after"))


async def write_log(h, fail):
    reads, writes = os.pipe()
    fail()
    handler = BackgroundHandler(writes)
    handler.emit(logging.LogRecord("x", logging.INFO, __file__, 1, "a line", None, None))
    await asyncio.to_thread(handler.flush)
    line = await asyncio.wait_for(asyncio.to_thread(os.read, reads, 100), PATIENCE)
    assert b"a line" in line


async def await_head(h, fail):
    fail()
    before, BoundedProtocol.head_seconds = BoundedProtocol.head_seconds, 0.05
    try:
        async with HttpServer(http_app("test")) as http:
            _, writes = await asyncio.open_connection("127.0.0.1", http.port)
            await h.until(lambda: h.failed("gateway.await_head"))
            writes.close()
    finally:
        BoundedProtocol.head_seconds = before


async def relay_chat(h, fail):
    relay = Relay()
    fail()

    async def gone():
        return False

    with pytest.raises(OSError, match="injected"):
        await asyncio.wait_for(relay.chat([], {}, gone), PATIENCE)


async def serve_http(h, fail):
    fail()
    with pytest.raises(OSError, match="did not start"):
        async with HttpServer(http_app("test"), supervisor=h.supervisor):
            pass


async def sweep_leases(h, fail):
    leases = Leases(h.server.engine, LeaseTimes(wait=0.05, lease=0.2))
    fail()
    leases.start()
    await h.until(lambda: h.failed("gateway.sweep_leases"))


async def work(h, fail):
    threads = DaemonThreads()
    fail()
    assert await asyncio.wait_for(threads.run(lambda: 5), PATIENCE) == 5
    threads.close()


async def summary(h, fail):
    fail()
    async with RolloutLog().summaries(h.server.engine.capacity, h.supervisor, every=0.02):
        await h.until(lambda: h.failed("serve.summary"))


async def end(h, fail):
    """In a process of its own, which the job ends."""
    source = (
        "import time\nfrom osmosis_grpc import supervise\nfrom osmosis_grpc.serve import process\n"
        "supervise.inject('serve.end', OSError('injected'))\nprocess.EXIT_AFTER_LIMIT = 0.0\n"
        "process.end_after(0.0)\ntime.sleep(60)\n"
    )
    child = await asyncio.to_thread(run, "-c", source)
    assert child.returncode == 1
    assert "serve.end failed; runs again" in child.stderr


async def end_with_parent(h, fail):
    """The process ends when its stdin has ended, also after a failure."""
    source = (
        "import time\nfrom osmosis_grpc import supervise\nfrom osmosis_grpc.serve.child import end_with_parent\n"
        "supervise.inject('serve.end_with_parent', OSError('injected'))\nend_with_parent()\ntime.sleep(60)\n"
    )
    child = await asyncio.to_thread(run, "-c", source, stdin=subprocess.DEVNULL)
    assert child.returncode == -signal.SIGKILL
    assert "serve.end_with_parent failed; runs again" in child.stderr


async def watch_server(h, fail):
    source = 'import sys; print(\'{"grpc": "h:1"}\', flush=True); sys.exit(7)'
    process = await asyncio.to_thread(ServerProcess, [sys.executable, "-c", source], {}, "")
    assert process.ready == {"grpc": "h:1"}
    codes = []
    fail()
    process.watch(codes.append)
    await h.until(lambda: codes == [7])
    assert supervise.failures["scaleout.watch_server"] == 1


async def read(h, fail):
    fail()
    async with RawTrainer(h.server.address) as trainer:
        stream = trainer.open()
        with pytest.raises(OSError, match="injected"):
            await stream.ended()


async def run_a_process(h, fail):
    async with Workspace() as space:
        fail()
        with pytest.raises(OSError, match="injected"):
            await run_process(["true"], space=space, environment={"PATH": os.environ["PATH"]})
    assert not space.folder.exists()


async def read_output(h, fail):
    """The output that is left is read at the end of the program."""
    async with Workspace() as space:
        fail()
        program = ["sh", "-c", "echo a; sleep 0.2; echo b"]
        ended = await run_process(program, space=space, environment={"PATH": os.environ["PATH"]})
    assert ended.output == "a\nb"


async def clean_up(h, fail):
    space = Workspace()
    fail()
    with pytest.raises(OSError, match="injected"):
        async with space:
            pass
    assert not space.folder.exists()


async def watch_a_program(h, fail):
    async with LocalSandbox() as sandbox:
        fail()
        with pytest.raises(SandboxError, match="injected"):
            await sandbox.run("sleep 60")


async def run_a_batch(h, fail):
    fail()
    with pytest.raises(OSError, match="injected"):
        await AgenticRollout(AgenticRolloutConfig(), lambda messages: "Final Answer: 5").run_batch(["What is 2 + 3?"])


async def stream_steps(h, fail):
    rollout = AgenticRollout(AgenticRolloutConfig(), lambda messages: "Final Answer: 5")
    fail()
    with pytest.raises(OSError, match="injected"):
        async with rollout.stream("What is 2 + 3?") as stream:
            async for _ in stream:
                pass


async def abort_call(h, fail):
    """The abort of a call fails. The next call of the policy works."""
    policy, generator, _ = policy_of(None, generated([1]))
    fail()
    async with policy:
        chat = asyncio.ensure_future(policy(ChatRequest(rollout_id="r", messages=[USER])))
        await h.until(lambda: generator.asked)
        chat.cancel()
        await asyncio.wait([chat])
        assert (await policy(ChatRequest(rollout_id="r", messages=[USER]))).tokens.ids.tolist() == [1]


async def sample_batch(h, fail):
    """The batch fails before its first token, so no torch is needed."""

    class Model:
        config = None

        def __call__(self, **tensors):
            raise AssertionError("the batch did not fail")

        forward = __call__

    generator = TransformersGenerator(Model(), ByteTokenizer(), end_ids=[0])
    prompt = GenerateRequest(
        request_id="1", session_id="r/main", prompt_ids=np.array([1], "<u4"), sampling=Sampling(max_tokens=1)
    )
    fail()
    with pytest.raises(Internal, match="injected"):
        await generator.generate(prompt)


SCENARIOS = {
    "policies.abort": abort_call,
    "policies.transformers": sample_batch,
    "tools.clean_up": clean_up,
    "tools.read_output": read_output,
    "tools.run_process": run_a_process,
    "tools.watch_program": watch_a_program,
    "agentic.rollout": run_a_batch,
    "agentic.stream": stream_steps,
    "agent.grade_group": grade_group,
    "agent.sync_call": sync_call,
    "agent.tool_call": tool_call,
    "cli.demo_server": lambda h, fail: demo(h, fail, "cli.demo_server"),
    "cli.demo_trainer": lambda h, fail: demo(h, fail, "cli.demo_trainer"),
    "cli.exit_after": exit_late,
    "cli.run_in_daemon_thread": run_in_a_thread,
    "console.write_log": write_log,
    "gateway.ask_chat": ask_chat,
    "gateway.ask_choice": ask_choice,
    "gateway.await_head": await_head,
    "gateway.drop_chat": drop_chat,
    "gateway.relay_chat": relay_chat,
    "gateway.serve_endpoints": serve_endpoints,
    "gateway.serve_http": serve_http,
    "gateway.sweep_leases": sweep_leases,
    "integrations.mcp_connection": mcp_connection,
    "supervise.work": work,
    "serve.end": end,
    "serve.summary": summary,
    "serve.end_with_parent": end_with_parent,
    "scaleout.watch_server": watch_server,
    "testing.read": read,
}
"""By job: makes it run after fail(), and checks what its failure does to those who wait."""
ELSEWHERE = {"cli.demo_server", "cli.demo_trainer", "serve.end", "serve.end_with_parent"}
"""Jobs that fail in another process."""
