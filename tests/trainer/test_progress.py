"""run(..., progress=True): a bar on a terminal, plain lines elsewhere."""

import asyncio
import io
import os
import re
import subprocess
import sys

import pytest

from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome
from osmosis_grpc.trainer.progress_bar import Progress
from tests.processes import ROOT

SCRIPT = """
import asyncio, os, sys, time
if "no-rich" in sys.argv:
    sys.modules.update(dict.fromkeys(["rich", *(name for name in sys.modules if name.startswith("rich."))]))
from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.trainer import RolloutRequest, SyncTrainer, Trainer

target, name, how = sys.argv[1:4]
question = [{"role": "user", "content": "What is 1 + 2?"}]
requests = [RolloutRequest(rollout_id=f"{name}-{n}", messages=question, label="3") for n in range(10)]
requests.append(RolloutRequest(rollout_id=f"{name}-bad", agent_loop="nobody"))

async def main():
    async with Trainer([target], ToolCallingMock(latency=0.1)) as trainer:
        async for outcome in trainer.run(requests, max_in_flight=4, progress=True):
            if how == "first":
                time.sleep(0.5)  # it blocks the event loop, and the bar is drawn all the same
                os._exit(0)
            if how == "leave":
                break
            if how == "print":
                print(outcome.rollout_id)

if how == "sync":
    with SyncTrainer([target], ToolCallingMock()) as trainer:
        print(len(list(trainer.run(iter(requests), group_size=2, progress=True))))
else:
    asyncio.run(main())
    print("over")
"""


@pytest.fixture(scope="module")
def target(forked):
    with forked.serving("-m", "osmosis_grpc.testing.calculator:agent_loop", "--no-journal") as address:
        yield address


def command(tmp_path, target, name, how, *more):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return [str(script), target, name, how, *more]


@pytest.fixture
def on_a_terminal(forked, tmp_path):
    """Runs a command with its stderr on a terminal; returns what it wrote there and on stdout."""

    def run(arguments, term="xterm-256color"):
        out = tmp_path / "out"
        code, shown = forked.shown(*arguments, columns=120, out=out, TERM=term)
        assert code == 0, shown
        return shown, out.read_text()

    return run


@pytest.mark.slow
def test_a_bar_on_a_terminal(on_a_terminal, target, tmp_path):
    shown, out = on_a_terminal(command(tmp_path, target, "bar", "run"))
    assert out == "over\n"
    assert "\x1b[?25l" in shown, "the cursor is hidden while the bar is drawn"
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "and comes back"
    assert "━" in shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"\d of 11 done, [1-4] in flight, ", plain), plain
    assert re.findall(r"rollouts \S* 11 of 11 done, 0 in flight, 1 failed, mean reward 1\.000, [\d.]+/s", plain), plain


def test_a_bar_is_drawn_while_the_callers_code_blocks_the_event_loop(on_a_terminal, target, tmp_path):
    shown, _ = on_a_terminal(command(tmp_path, target, "first", "first"))
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.findall(r"(\d+) of 11 done", plain)[-1] != "0", plain


def test_a_bar_that_is_left_gives_the_terminal_back(on_a_terminal, target, tmp_path):
    shown, out = on_a_terminal(command(tmp_path, target, "left", "leave"))
    assert out == "over\n"
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_what_a_script_prints_goes_where_it_is_to_go(on_a_terminal, target, tmp_path):
    shown, out = on_a_terminal(command(tmp_path, target, "print", "print"))
    assert sorted(out.split()) == sorted([*(f"print-{n}" for n in range(10)), "print-bad", "over"])
    assert "print-0" not in shown


@pytest.mark.parametrize("without", ["no-rich", "dumb"])
def test_a_terminal_without_rich_gets_lines(on_a_terminal, target, tmp_path, without):
    more = ["no-rich"] if without == "no-rich" else []
    term = "dumb" if without == "dumb" else "xterm"
    shown, _ = on_a_terminal(command(tmp_path, target, without, "run", *more), term)
    assert "\x1b" not in shown
    assert re.fullmatch(LAST, shown.splitlines()[-1]), shown


LAST = r"rollouts: 11 of 11 done, 0 in flight, 1 failed, mean reward 1\.000, [\d.]+/s"


@pytest.mark.slow
def test_lines_through_a_pipe(forked, target, tmp_path):
    result = forked.run(*command(tmp_path, target, "pipe", "run"))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "over\n"
    assert "\x1b" not in result.stderr
    assert re.fullmatch(LAST, result.stderr.splitlines()[-1]), result.stderr


def test_a_sync_trainer_and_requests_of_unknown_number(forked, target, tmp_path):
    result = forked.run(*command(tmp_path, target, "sync", "sync"))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "22\n"
    assert re.fullmatch(LAST.replace("11", "22").replace("1 failed", "2 failed"), result.stderr.splitlines()[-1])


@pytest.mark.slow
def test_stderr_that_is_closed_does_not_stop_the_rollouts(target, tmp_path):
    nobody, stderr = os.pipe()
    os.close(nobody)
    result = subprocess.run(
        [sys.executable, *command(tmp_path, target, "closed", "run")],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=ROOT,
        timeout=50,
    )
    os.close(stderr)
    assert (result.returncode, result.stdout) == (0, "over\n")


async def test_a_process_without_stderr_shows_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with Progress() as progress:
        progress.watch(done())


def done(**fields):
    future = asyncio.get_running_loop().create_future()
    future.set_result(RolloutOutcome(**({"rollout_id": "r", "status": OutcomeStatus.COMPLETED} | fields)))
    return future


async def test_the_numbers():
    """The seam: any code with a rollout's future may use it."""
    file = io.StringIO()
    with Progress(3, file=file) as progress:
        assert str(progress) == "0 of 3 done, 0 in flight, 0 failed"
        waiting = asyncio.get_running_loop().create_future()
        progress.watch(waiting)
        progress.watch(done(reward=0.5))
        progress.watch(done(status=OutcomeStatus.CANCELLED))
        progress.watch(done(status=OutcomeStatus.FAILED))
        await asyncio.sleep(0)
        assert str(progress).startswith("3 of 4 done, 1 in flight, 2 failed, mean reward 0.500, ")
        waiting.set_exception(ValueError())
    await asyncio.sleep(0)
    assert str(progress).startswith("4 of 4 done, 0 in flight, 3 failed")
    assert file.getvalue().startswith("rollouts: 3 of 4 done, ")


async def test_a_file_that_breaks_is_left_alone(caplog):
    file = io.StringIO()
    with Progress(1, file=file) as progress:
        progress.watch(done())
        file.close()
    assert "progress is not shown any more" in caplog.text
