"""`serve --command` as a process: names, refusals, other providers' keys, and a server that is killed or stopped."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.types import FailureReason, OutcomeStatus
from osmosis_grpc.tools import reaper
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.gateway.commands import COMMAND, USER, write
from tests.processes import run, serving
from tests.tools.test_process import marked
from tests.waiting import ended, until

pytestmark = pytest.mark.slow

CANARIES = {"OPENAI_API_KEY": "canary-1", "ANTHROPIC_API_KEY": "canary-2", "AWS_SECRET_ACCESS_KEY": "canary-3"}
MODULE = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
SLEEPS = """
import subprocess, time
ask([USER])
subprocess.Popen(["setsid", "sleep", "600"])
say("asked")
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--command", "no-such-program x"), "serve: --command: there is no program 'no-such-program'"),
        (("--command", "./helper.py"), "serve: --command: the program './helper.py' is not executable"),
        (("--command", "sh 'x"), 'serve: --command: "sh \'x" cannot be split: No closing quotation'),
        (("--command", " "), "serve: --command: the command is empty"),
        (
            (*MODULE, "--command-name", "a"),
            "serve: --command-name: name each --command, in their order; there are 1 for 0",
        ),
        (("--command", "sh", "--command-env", "OPENAI_API_KEY"), "OPENAI_API_KEY is always the rollout's own"),
        (("--command", "sh", "--command", "sh"), "two agent loops have the same name: sh, sh"),
    ],
)
def test_a_command_that_cannot_be_served_is_a_usage_error(forked, tmp_path, arguments, problem):
    write(tmp_path, "")
    done = forked.run("-m", "osmosis_grpc.serve", "--grpc-port", "0", "--no-http", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert problem in done.stderr


NAMES = ("--command-name", "one", "--command-name", "two")


async def test_each_command_has_a_name_beside_other_agents(tmp_path):
    write(tmp_path, "ask([USER]); result(reward=len(sys.argv))")
    arguments = ("--command", COMMAND, "--command", f"{COMMAND} 'x\u2028y' z", *NAMES, *MODULE)
    with serving(*arguments, cwd=tmp_path) as (_, ready):
        assert ready["agent_loops"] == ["calculator", "one", "two"]
        async with Trainer([ready["grpc"]], EchoPolicy()) as trainer:
            for name, reward in (("one", 1.0), ("two", 3.0)):
                outcome = await trainer.rollout(rollout_id=name, messages=[USER], agent_loop=name)
                assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, reward), outcome.failure


async def test_the_server_pins_parameters_that_a_program_has_in_its_code(tmp_path):
    write(tmp_path, "ask([USER], temperature=0, top_k=1); result(reward=1)")
    pins = ("--pin-sampling", "temperature=1.0", "--pin-sampling", "top_k=-1")
    with serving("--command", COMMAND, *pins, cwd=tmp_path) as (_, ready):
        async with Trainer([ready["grpc"]], EchoPolicy()) as trainer:
            outcomes = [
                await trainer.rollout(rollout_id=name, messages=[USER], completion_params=params)
                for name, params in (("none", {}), ("own", {"temperature": 0.5}))
            ]
    asked = [dict(outcome.samples["main"].chats[0].params) for outcome in outcomes]
    assert asked == [{"temperature": 1.0, "top_k": -1}, {"temperature": 0.5, "top_k": -1}]


async def test_the_keys_of_other_providers_go_nowhere(tmp_path):
    write(
        tmp_path,
        """
everything = json.dumps(dict(os.environ))
ask([{"role": "user", "content": everything}])
print(everything)
result(reward=1, metadata={"found": everything})
sys.exit(0 if json.load(sys.stdin)["label"] == "good" else 1)
""",
    )
    seen, echo = [], EchoPolicy()

    async def policy(request):
        seen.append(repr(request))
        return await echo(request)

    state = tmp_path / "state"
    arguments = (
        "--command",
        COMMAND,
        "--state-dir",
        str(state),
        "--log-level",
        "debug",
        "--log",
        str(tmp_path / "log"),
    )
    with serving(*arguments, cwd=tmp_path, env=os.environ | CANARIES) as (process, ready):
        async with Trainer([ready["grpc"]], policy) as trainer:
            for label in ("good", "bad"):
                outcome = await trainer.rollout(rollout_id=label, messages=[USER], label=label)
                seen.append(repr(outcome))
        process.send_signal(signal.SIGTERM)
        out, err = await asyncio.to_thread(process.communicate)
    assert len(seen) == 4
    assert "OSMOSIS_RESULT_FILE" in seen[-1], "the last lines of output are in the failure"
    files = [path.read_bytes() for folder in (state, tmp_path / "log") for path in folder.rglob("*") if path.is_file()]
    assert any(b"OSMOSIS_RESULT_FILE" in data for data in files)
    for text in (*seen, out, err, *(data.decode("latin-1") for data in files)):
        assert "canary" not in text


async def test_a_program_cannot_read_the_environment_of_the_server(tmp_path):
    """For root, everything is readable, so root gives its privileges away first."""
    write(
        tmp_path,
        """
def read(pid):
    try:
        return open(f"/proc/{pid}/environ").read()
    except OSError as error:
        return error.strerror

import subprocess
subprocess.Popen(["setsid", "sleep", "600"])
marker = os.environ["OSMOSIS_PROCESS_MARKER"]
result(metadata={"server": read(os.getppid()), "own": "OSMOSIS_RESULT_FILE" in read("self"), "marker": marker})
""",
    )
    before = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"] if os.getuid() == 0 else []
    arguments = ("--command", COMMAND, "--state-dir", str(tmp_path / "state"))
    with serving(*arguments, cwd=tmp_path, env=os.environ | CANARIES, before=before) as (_, ready):
        async with Trainer([ready["grpc"]], EchoPolicy()) as trainer:
            outcome = await trainer.rollout(rollout_id="r1", messages=[USER])
    found = outcome.extra_fields
    assert (found["server"], found["own"]) == ("Permission denied", True)
    assert marked(found["marker"]) == [], "its processes are found and killed"


@contextlib.asynccontextmanager
async def in_the_middle(tmp_path, *arguments):
    """Yields a server whose program is running with a grandchild, its ready record, and the program's folder."""
    write(tmp_path, SLEEPS)
    with serving("--command", COMMAND, "--state-dir", str(tmp_path / "state"), *arguments, cwd=tmp_path) as (
        process,
        ready,
    ):
        async with Trainer([ready["grpc"]], EchoPolicy()) as trainer:
            rollout = asyncio.create_task(trainer.rollout(rollout_id="r1", messages=[USER]))
            await until((tmp_path / "asked").exists)
            folder = Path((tmp_path / "asked").read_text()).parent
            await until(lambda: len(marked(marker(folder))) == 2)
            yield process, rollout, folder
            rollout.cancel()
            await asyncio.wait({rollout})


def marker(folder):
    return folder.name.removeprefix("osmosis-")


async def nothing_is_left(folder):
    await until(lambda: not marked(marker(folder)))
    await until(lambda: not folder.exists())


async def test_a_killed_server_leaves_nothing_and_its_rollout_ends_after_the_restart(tmp_path):
    async with in_the_middle(tmp_path) as (process, _, folder):
        process.kill()
        await nothing_is_left(folder)
    with serving("--command", COMMAND, "--state-dir", str(tmp_path / "state"), cwd=tmp_path) as (_, ready):
        async with RolloutClient(ready["grpc"]) as client:
            outcome = await asyncio.wait_for(ended(client, "r1"), 20)
    assert (outcome.status, outcome.failure.reason) == (OutcomeStatus.FAILED, FailureReason.RESTART)
    assert (outcome.failure.boundary, outcome.failure.retryable) == ("server", True)


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_server_that_stops_at_once_leaves_nothing(tmp_path, signals):
    limit = ("--drain-timeout", "0" if signals == 1 else "600")
    async with in_the_middle(tmp_path, *limit) as (process, rollout, folder):
        process.send_signal(signal.SIGTERM)
        if signals == 2:
            await asyncio.to_thread(next, (line for line in process.stdout if "draining" in line))
            process.send_signal(signal.SIGTERM)
        else:
            outcome = await asyncio.wait_for(rollout, 20)
            assert outcome.failure.reason is FailureReason.SHUTDOWN
            assert "main" in outcome.samples
        await nothing_is_left(folder)
        assert await asyncio.to_thread(process.wait, 20) == (0 if signals == 1 else 128 + signal.SIGTERM)


def test_the_reaper_needs_no_package():
    """It is quick to start, and small, because it imports only the standard library."""
    source = "import runpy, sys; runpy.run_path(sys.argv[1]); print([n for n in sys.modules if 'osmosis' in n])"
    assert run("-I", "-S", "-c", source, reaper.__file__).stdout == "[]\n"
