"""Programs run in workspaces: their input, output, limits and ends. Nothing of them is left."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from osmosis_grpc.supervise import DaemonThreads
from osmosis_grpc.tools import process, reaper
from osmosis_grpc.tools.process import Limits, run_process
from osmosis_grpc.tools.program_caches import PYTEST, WRITES_NOTHING
from osmosis_grpc.tools.workspace import Workspace
from tests.processes import ROOT
from tests.waiting import until

PATH = {"PATH": os.environ["PATH"]}
STARTED = "touch started; "


async def ran(*argv, **options):
    """Runs a program to its end. Returns the end, and the workspace, which must be gone."""
    async with Workspace() as space:
        ended = await run_process(argv, space=space, environment=PATH, **options)
    assert not space.folder.exists()
    assert marked(space.marker) == []
    return ended


async def shell(text, **options):
    return await ran("sh", "-c", text, **options)


def marked(marker):
    """The living processes that have a marker in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            pass
    return found


async def test_a_program_has_its_input_its_folder_and_exactly_its_variables(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    ended = await shell("cat; pwd; echo error >&2; env | sort; exit 3", stdin=b"the task\n")
    assert (ended.exit_code, ended.timed_out) == (3, False)
    task, folder, error, *variables = ended.output.splitlines()
    assert (task, error) == ("the task", "error")
    assert folder.endswith("/work")
    names = {line.partition("=")[0] for line in variables} - {"PWD", "OLDPWD", "SHLVL", "_"}
    assert names == {"PATH", "TMPDIR", reaper.MARKER, *WRITES_NOTHING, PYTEST}


async def test_a_program_that_never_reads_its_input_blocks_nothing():
    assert (await shell("exit 0", stdin=b"x" * 10_000_000)).exit_code == 0
    assert (await shell("exec <&-; exit 0", stdin=b"x" * 10_000_000)).exit_code == 0


async def test_the_last_lines_of_the_output_are_kept():
    ended = await shell("seq 100000; printf '\\377 end'", limits=Limits(output_lines=3))
    assert ended.output == "99999\n100000\n\ufffd end"
    ended = await shell("head -c 100000 /dev/zero | tr '\\0' x", limits=Limits(output_bytes=100))
    assert ended.output == "x" * 100


async def test_only_a_line_end_ends_a_line_of_the_output():
    ended = await ran(sys.executable, "-c", r"import sys; sys.stdout.buffer.write('a\u2028b\x85c\r\nd\re'.encode())")
    assert [line[0] + line[-1] for line in ended.output.split("\n")] == ["ac", "dd", "ee"]


@pytest.mark.slow
async def test_a_program_that_prints_a_gigabyte_takes_no_memory():
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ended = await shell("yes | head -c 1000000000; echo; echo done")
    assert (ended.exit_code, ended.output[-4:]) == (0, "done")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


async def test_a_program_that_cannot_be_started_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        await ran("there-is-no-such-program")
    (tmp_path / "program").write_text("no shebang")
    with pytest.raises(PermissionError):
        await ran(str(tmp_path / "program"))
    (tmp_path / "program").chmod(0o755)
    with pytest.raises(OSError, match="Exec format"):
        await ran(str(tmp_path / "program"))


@pytest.mark.parametrize("text", ["sleep 600", "trap '' TERM; sleep 600; sleep 600", "kill -STOP $$"])
async def test_the_time_limit_stops_a_program(text):
    ended = await shell(text, limits=Limits(seconds=0.2))
    assert ended.timed_out
    assert -ended.exit_code in (signal.SIGTERM, signal.SIGKILL)


async def test_a_program_may_clean_up_on_sigterm():
    ended = await shell("trap 'echo cleaned; exit 5' TERM; sleep 600 & wait", limits=Limits(seconds=0.2))
    assert (ended.exit_code, ended.output, ended.timed_out) == (5, "cleaned", True)


async def test_the_memory_limit_holds_for_each_process():
    source = "import time; time.sleep(0.2); x = bytearray(1_000_000_000)"
    ended = await ran(sys.executable, "-c", source, limits=Limits(memory=300 * 2**20))
    assert ended.exit_code == 1
    assert "MemoryError" in ended.output


@pytest.mark.parametrize(
    "left",
    ["sleep 600 &", "setsid sleep 600 &", "(setsid sh -c 'sleep 600; true' &) ", "nohup setsid sleep 600 >/dev/null &"],
)
async def test_no_process_outlives_its_program(left):
    ended = await shell(f"{left}\nexit 0")
    assert ended.exit_code == 0
    assert ended.seconds < 100


@pytest.mark.parametrize("again", [False, True])
async def test_a_cancelled_run_ends_its_processes_first(again):
    space = Workspace()

    async def work():
        async with space:
            await run_process(
                ["sh", "-c", "trap '' TERM; setsid sleep 600 & touch started; sleep 600; sleep 600"],
                space=space,
                environment=PATH,
            )

    task = asyncio.create_task(work())
    await until((space.work / "started").exists)
    assert len(marked(space.marker)) > 1
    task.cancel()
    if again:
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert marked(space.marker) == []
    assert not space.folder.exists()


async def test_a_run_that_is_cancelled_at_once_leaves_nothing():
    for turns in range(12):
        space = Workspace()

        async def work(space=space):
            async with space:
                await run_process(["sleep", "600"], space=space, environment=PATH)

        task = asyncio.create_task(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert marked(space.marker) == []
        assert not space.folder.exists()


@pytest.mark.slow
async def test_fifty_programs_at_once():
    ends = await asyncio.gather(*(shell(f"setsid sleep 600 & echo {n}; exit {n}") for n in range(50)))
    assert [ended.exit_code for ended in ends] == list(range(50))
    assert [ended.output for ended in ends] == [str(n) for n in range(50)]


async def test_descriptors_do_not_pile_up():
    await shell("exit 0")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        await shell("exit 0")
        with pytest.raises(FileNotFoundError):
            await ran("there-is-no-such-program")
    assert len(os.listdir("/proc/self/fd")) <= before + 2


async def test_a_folder_is_removed_though_its_program_took_its_permissions_away():
    assert (
        await shell("mkdir -p a/b; touch a/b/c $TMPDIR/x; chmod 000 a/b; chmod 500 a; chmod 000 $TMPDIR")
    ).exit_code == 0


REMOVES = """
import os, pathlib, runpy, sys, tempfile

remove_folders = runpy.run_path(sys.argv[1])["remove_folders"]
with tempfile.TemporaryDirectory() as top:
    folder = pathlib.Path(top, "osmosis-1")
    victim = pathlib.Path(top, "victim/sub")
    victim.mkdir(parents=True)
    victim.chmod(0o755)
    folder.symlink_to(victim.parent)
    remove_folders(folder)
    print(os.path.lexists(folder), oct(victim.stat().st_mode & 0o777))
"""


def test_a_link_in_the_place_of_a_folder_is_removed_and_its_target_stays():
    python, user = sys.executable, {}
    if os.getuid() == 0:  # for root, no folder is unreadable; and other users may not start root's Python
        python, user = "/usr/bin/python3", {"user": 65534, "group": 65534, "extra_groups": []}
    arguments = [python, "-I", "-S", "-c", REMOVES, reaper.__file__]
    done = subprocess.run(arguments, cwd="/", capture_output=True, text=True, **user)
    assert done.stdout.splitlines() == ["False 0o755"], done.stderr
    assert done.stderr == ""


async def test_the_time_limit_begins_when_the_program_starts(monkeypatch):
    monkeypatch.setattr(process, "program_threads", DaemonThreads(1))
    ends = await asyncio.gather(*(shell("sleep 0.3; echo done", limits=Limits(seconds=1.0)) for _ in range(4)))
    assert [(ended.output, ended.timed_out) for ended in ends] == [("done", False)] * 4


async def test_a_program_that_writes_without_end_is_stopped_and_has_its_last_lines():
    ended = await shell("yes", limits=Limits(seconds=1.0))
    assert ended.timed_out
    assert ended.output == "\n".join("y" * 40)


@pytest.mark.parametrize("before", range(88, 101, 3))
async def test_no_part_of_a_secret_is_in_the_output(before):
    """The output is cut within the secret, or beside it."""
    written = f"printf %s {'a' * 300}secret-secret{'b' * before}"
    ended = await shell(written, limits=Limits(output_bytes=100), secrets=["secret-secret"])
    assert set(ended.output) <= set("ab[key]")
    assert ended.output.endswith("b" * 80)


async def test_control_characters_of_the_output_are_escaped():
    ended = await shell(r"printf 'a\033[31mred\000\tb\rc\n'")
    assert ended.output == "a\\x1b[31mred\\x00\tb\nc"
    ended = await shell("head -c 100000 /dev/zero", limits=Limits(output_bytes=100))
    assert ended.output == "\\x00" * 25


# The server dies.

SERVER = """
import asyncio, sys
from osmosis_grpc.tools.process import run_process
from osmosis_grpc.tools.workspace import Workspace

async def run():
    async with Workspace() as space:
        environment = {"PATH": sys.argv[2], "HERE": sys.argv[3]}
        await run_process(["sh", "-c", sys.argv[1]], space=space, environment=environment)

async def main():
    await asyncio.gather(run(), run())

asyncio.run(main())
"""


@pytest.fixture
async def server(tmp_path):
    """A process that runs two programs, each with a grandchild in a session of its own."""
    program = (
        "setsid sleep 600 & pwd >$HERE/$$.new; mv $HERE/$$.new $HERE/$$.folder; trap '' TERM; sleep 600; sleep 600"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, program, os.environ["PATH"], str(tmp_path), cwd=ROOT, start_new_session=True
    )
    await until(lambda: len(list(tmp_path.glob("*.folder"))) == 2)
    yield process
    if process.returncode is None:
        process.kill()
        await process.wait()


def folders(tmp_path):
    return [Path(path.read_text().strip()).parent for path in tmp_path.glob("*.folder")]


def markers(tmp_path):
    return [path.name.removeprefix("osmosis-") for path in folders(tmp_path)]


def reaper_of(process):
    """The process id of the reaper."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"reaper.py" in (path / "cmdline").read_bytes():
                return int(path.name)
        except OSError:
            pass
    return None


async def all_gone(tmp_path):
    await until(lambda: not any(marked(marker) for marker in markers(tmp_path)))
    await until(lambda: not any(folder.exists() for folder in folders(tmp_path)))


async def test_a_killed_server_leaves_no_process_and_no_folder(server, tmp_path):
    assert all(len(marked(marker)) > 1 for marker in markers(tmp_path))
    reaping = reaper_of(server)
    server.kill()
    await server.wait()
    await all_gone(tmp_path)
    await until(lambda: not Path(f"/proc/{reaping}").exists())


async def test_a_server_whose_group_is_killed_leaves_nothing(server, tmp_path):
    os.killpg(server.pid, signal.SIGKILL)
    await server.wait()
    await all_gone(tmp_path)


async def test_a_reaper_that_was_killed_starts_again():
    source = textwrap.dedent(
        """
        import asyncio, sys
        from osmosis_grpc.tools.workspace import Workspace

        async def main():
            async with Workspace() as first:
                print(first.folder, flush=True)
                sys.stdin.readline()
                async with Workspace() as second:
                    print(second.folder, flush=True)
                    await asyncio.sleep(600)

        asyncio.run(main())
        """
    )
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", source, cwd=ROOT, stdin=pipe, stdout=pipe)
    first = await process.stdout.readline()
    os.kill(reaper_of(process), signal.SIGKILL)
    process.stdin.write(b"\n")
    made = [Path(path.decode().strip()) for path in (first, await process.stdout.readline())]
    assert all(path.exists() for path in made)
    process.kill()
    await process.communicate()
    await until(lambda: not any(path.exists() for path in made))


async def test_a_forked_child_does_not_keep_the_reaper_waiting(tmp_path):
    source = textwrap.dedent(
        """
        import asyncio, os, signal, sys, time
        from osmosis_grpc.tools.workspace import Workspace

        async def main():
            async with Workspace() as space:
                child = os.fork()
                if not child:
                    time.sleep(600)
                print(child, space.folder, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
        """
    )
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", source, cwd=ROOT, stdout=pipe)
    try:
        child, folder = (await process.stdout.readline()).decode().split()
        await until(lambda: not Path(folder).exists())
        assert Path(f"/proc/{child}").exists()
    finally:
        os.kill(int(child), signal.SIGKILL)
        await process.communicate()
