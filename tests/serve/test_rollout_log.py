"""What serve logs: one line for each ended rollout, a summary, the server's own comings and goings, nothing else."""

import asyncio
import contextlib
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
from collections import Counter

import pytest

from osmosis_grpc.policies import ScriptedPolicy, ToolCallingMock
from osmosis_grpc.serve.rollout_log import RolloutLog
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import Credentials, RolloutClient, RolloutRequest, Trainer
from tests.processes import ROOT, serving
from tests.waiting import until

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
SECRET = "a-secret-of-this-test"
REPLY = "what the model said"

AGENTS = """
from osmosis_grpc.rollout import RolloutAgentLoop

class Failing(RolloutAgentLoop):
    name = "failing"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        await ctx.chat(list(ctx.request.messages))
        raise ValueError("the first line\\x1b[2J\\n{\\"event\\": \\"rollout ended\\", \\"forged\\": true}\\nthe third")

agent_loop = Failing()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


def logged(err):
    """The records on stderr: each line is one. A busy machine may have the watchdog warn."""
    rows = [json.loads(line) for line in err.splitlines()]
    return [row for row in rows if not row["logger"].endswith("watchdog")]


TOKEN = {"OSMOSIS_ROLLOUT_SERVER_TOKEN": f"lab={SECRET}"}


def ended(rows):
    return [row for row in rows if row["event"] == "rollout ended"]


async def rollouts(address, policy, count):
    requests = [RolloutRequest(rollout_id=f"r{number}", messages=QUESTION, label="3") for number in range(count)]
    async with (
        Trainer([address], policy, credentials=Credentials(token=SECRET)) as trainer,
        RolloutClient(address, token=SECRET) as client,
    ):
        outcomes = [outcome async for outcome in trainer.run(requests)]
        while (await client.info()).capacity.undelivered:  # a trainer that leaves at once keeps the last answers
            await asyncio.sleep(0.01)  # between two looks
        return outcomes


def served(*arguments, policy, count, cwd=ROOT, env=None):
    """What a server logs while a trainer runs rollouts, and then SIGTERM comes; and the outcomes."""
    with serving(*arguments, cwd=cwd, env=(env or os.environ) | TOKEN) as (process, ready):
        outcomes = asyncio.run(asyncio.wait_for(rollouts(ready["grpc"], policy, count), 40))
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert SECRET not in err
    return logged(err), outcomes, ready


@pytest.mark.slow
async def test_one_line_for_each_ended_rollout_and_nothing_of_uvicorn(tmp_path):
    state = str(tmp_path / "state")
    arguments = (*CALCULATOR, "-p", "0", "--log-level", "info", "--state-dir", state)
    rows, outcomes, ready = await asyncio.to_thread(served, *arguments, policy=ToolCallingMock(), count=50)
    lines = {row["rollout_id"]: row for row in ended(rows)}
    assert len(ended(rows)) == len(lines) == len(outcomes) == 50
    for outcome in outcomes:
        line, metrics = lines[outcome.rollout_id], outcome.metrics
        assert line["level"] == "info"
        assert {name: line[name] for name in ("agent_loop", "status", "reward", "turns", "tokens")} == {
            "agent_loop": "calculator",
            "status": "COMPLETED",
            "reward": outcome.reward,
            "turns": metrics.num_llm_calls,
            "tokens": metrics.response_tokens,
        }
        assert line["seconds"] == round(metrics.total_latency_ms / 1000, 3)
        assert not {"attempt", "boundary", "failure"} & line.keys()
    events = [row["event"] for row in rows if row["event"] != "rollout ended"]
    assert Counter(events) == Counter(
        (
            "serving calculator",
            "a trainer attached",
            "a trainer went away",
            "stopping; a second signal stops at once",
            "draining: no new rollouts from now on",
            "drained",
            "summary",
            "stopped",
        )
    )
    assert (events[0], events[-1]) == ("serving calculator", "stopped")
    by_event = {row["event"]: row for row in rows}
    start = by_event["serving calculator"]
    assert {name: start[name] for name in ("grpc", "http", "agent_loops", "version")} == {
        name: ready[name] for name in ("grpc", "http", "agent_loops", "version")
    }
    assert start["state_dir"] == state
    assert by_event["a trainer attached"]["owner"] == "token:lab"
    assert by_event["summary"]["ended"] == by_event["stopped"]["ended"] == 50
    assert not {row["logger"] for row in rows if not row["logger"].startswith("osmosis_grpc.")}


@pytest.mark.slow
async def test_http_libraries_talk_at_debug_only(tmp_path):
    rows, _, _ = await asyncio.to_thread(
        served, *CALCULATOR, "-p", "0", "--log-level", "debug", policy=ToolCallingMock(), count=1
    )
    assert "uvicorn.error" in {row["logger"] for row in rows}


@pytest.mark.slow
async def test_nothing_at_warning(tmp_path):
    rows, _, _ = await asyncio.to_thread(
        served, *CALCULATOR, "-p", "0", "--log-level", "warning", policy=ToolCallingMock(), count=3
    )
    assert rows == []


async def test_a_failure_has_its_boundary_and_one_line_and_forges_none(folder):
    rows, outcomes, _ = await asyncio.to_thread(
        served, "-m", "agents:agent_loop", policy=ScriptedPolicy([REPLY]), count=2, cwd=folder
    )
    assert [outcome.status for outcome in outcomes] == ["FAILED", "FAILED"]
    for line in ended(rows):
        assert (line["status"], line["boundary"], line["turns"]) == ("FAILED", "agent", 1)
        assert "the first line\x1b[2J" in line["failure"]
        assert "the third" not in line["failure"]
        assert re.fullmatch(r"agents\.py:[1-9]\d*", line["at"])
        assert "reward" not in line
    assert len(ended(rows)) == 2
    assert not any("forged" in row for row in rows)
    assert REPLY not in json.dumps(rows)


async def test_a_higher_attempt_is_in_the_line(caplog):
    caplog.set_level(logging.INFO, "osmosis_grpc.serve")
    async with AgentServer([CalculatorAgent()], port=0) as server:
        server.engine.end_sinks.append(RolloutLog())
        async with Trainer([server.address], ToolCallingMock()) as trainer:
            await trainer.rollout(rollout_id="r", messages=QUESTION, attempt=3)
    (line,) = (row for row in caplog.records if row.getMessage() == "rollout ended")
    assert (line.rollout_id, line.attempt) == ("r", 3)


async def test_a_summary_while_there_is_load(caplog):
    """A rollout runs, then none: the summaries say so, and then there are no more."""
    caplog.set_level(logging.INFO, "osmosis_grpc.serve")
    release = asyncio.Event()

    async def slow(request):
        await release.wait()
        return await ToolCallingMock()(request)

    def summaries():
        return [row for row in caplog.records if row.getMessage() == "summary"]

    rollout_log = RolloutLog()
    async with AgentServer([CalculatorAgent()], port=0) as server, asyncio.timeout(20):
        server.engine.end_sinks.append(rollout_log)
        async with Trainer([server.address], slow) as trainer:
            running = asyncio.create_task(trainer.rollout(rollout_id="r", messages=QUESTION, label="3"))
            async with rollout_log.summaries(server.engine.capacity, server.supervisor, every=0.02):
                await until(lambda: any(row.running for row in summaries()))
                assert not any(row.ended for row in summaries())
                release.set()
                await running
                await until(lambda: any(row.ended for row in summaries()))
                last = summaries()[-1]
                assert (last.running, last.queued, last.ended, last.failed, last.mean_reward) == (0, 0, 1, 0, 1.0)
                assert last.rollouts_per_second > 0
                count = len(summaries())
                await asyncio.sleep(0.1)  # two more intervals
                assert len(summaries()) == count


@pytest.mark.slow
async def test_a_summary_every_ten_seconds(folder):
    (folder / "slow.py").write_text(AGENTS.replace("raise ValueError", "import asyncio; await asyncio.sleep(12) #"))
    rows, _, _ = await asyncio.to_thread(
        served, "-m", "slow:agent_loop", "--no-validate", policy=ScriptedPolicy([REPLY]), count=2, cwd=folder
    )
    first = next(row for row in rows if row["event"] == "summary")
    assert (first["running"], first["ended"]) == (2, 0)
    assert "mean_reward" not in first


@pytest.mark.slow
async def test_a_stderr_without_a_reader_blocks_no_rollout(folder):
    """More is logged than a pipe holds, and nobody reads it: every rollout ends, and so does the server."""
    with serving("-m", "agents:agent_loop", cwd=folder, env=os.environ | TOKEN) as (process, ready):
        count = 400  # a traceback each
        outcomes = await asyncio.wait_for(rollouts(ready["grpc"], ScriptedPolicy([REPLY]), count), 40)
        assert len(outcomes) == count
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0


DROPPING = """
import logging, os, sys
from osmosis_grpc.settings import logs

with logs.configured("info"):
    log = logging.getLogger("test")
    for number in range(logs.WAITING + 5000):
        log.info("line %d %s", number, "x" * 100)
    sys.stdout.write("logged\\n")
    sys.stdout.flush()
    sys.stdin.readline()
"""


def test_what_does_not_fit_is_dropped_and_counted():
    command = [sys.executable, "-c", DROPPING]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "logged\n"
        _, err = process.communicate("\n", timeout=30)
    rows = logged(err)
    dropped = [int(row["event"].split()[0]) for row in rows if "were dropped" in row["event"]]
    lines = [row for row in rows if row["logger"] == "test"]
    assert sum(dropped) > 0
    assert len(lines) + sum(dropped) == 15_000
    assert [row["event"].split()[1] for row in lines[:100]] == [str(number) for number in range(100)]


TERMINAL = """
import logging
from osmosis_grpc.settings import logs

def hides(password="SECRET"):
    raise RuntimeError("a reason\\n12:00:00 [info     ] forged\\x1b[2J")

with logs.configured("info"):
    log = logging.getLogger("osmosis_grpc.serve.rollout_log")
    log.info("rollout ended", extra={"rollout_id": "r\\n12:00:00 [info     ] forged", "status": "COMPLETED\\x1b[2J"})
    log.warning("the agent of rollout %s raised\\nTraceback", "r\\x1b[2J\\u202e")
    try:
        hides()
    except RuntimeError:
        log.exception("it failed")
"""


def test_on_a_terminal_no_line_is_forged_and_no_local_variable_shown():
    main, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", TERMINAL.replace("SECRET", SECRET)], stderr=end, env=os.environ | {"NO_COLOR": "1"}
    ) as process:
        os.close(end)
        parts = []
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(main, 65536):
                parts.append(part)
        process.wait(20)
    os.close(main)
    text = b"".join(parts).decode()
    assert process.returncode == 0
    assert "rollout ended" in text
    assert "COMPLETED\\x1b[2J" in text
    assert "RuntimeError: a reason" in text
    assert SECRET not in text
    assert "\x1b[2J" not in text
    assert "\u202e" not in text
    assert not [line for line in text.splitlines() if line.startswith("12:00:00")]
