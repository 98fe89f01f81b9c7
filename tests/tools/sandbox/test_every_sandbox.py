"""The programs of every kind of sandbox, on this machine, in containers and in pods. All give the same results."""

import asyncio
import os
import signal

import pytest

from osmosis_grpc.tools.program_caches import PYTEST, WRITES_NOTHING
from osmosis_grpc.tools.sandbox import Protection, SandboxError, SandboxFileError, SandboxRefused
from tests.tools.sandbox import kinds
from tests.tools.sandbox.left_over import processes_with
from tests.waiting import until

CONTAINERS = [
    pytest.param(kinds.DOCKER, marks=pytest.mark.docker),
    pytest.param(kinds.PODS, marks=pytest.mark.adapters),
]


@pytest.fixture(params=[*kinds.LOCAL, *CONTAINERS])
async def kind(request):
    """Each kind of sandbox."""
    async with kinds.opened(request) as made:
        yield made


@pytest.fixture
async def box(kind):
    """A sandbox of each kind."""
    async with kind.sandbox() as made:
        yield made


async def test_a_program_has_its_input_folder_and_variables_and_two_outputs(kind, box, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    ended = await box.run("cat; pwd; echo error >&2; env; exit 3", stdin=b"the task\n", environment={"MINE": "1"})
    assert (ended.exit_code, ended.timed_out, ended.stderr) == (3, False, b"error\n")
    assert type(ended.exit_code) is int
    task, folder, *variables = ended.stdout.decode().splitlines()
    assert (task, folder) == ("the task", box.folder)
    names = {line.partition("=")[0] for line in variables} - {"PWD", "OLDPWD", "SHLVL", "_"}
    assert names == {*kind.differs.variables, "MINE", *WRITES_NOTHING, PYTEST}


async def test_arguments_variables_and_input_arrive_unchanged(box):
    arguments = ["two words", "it's", 'a "b"', "line\nbreak", "$(touch x)", "-rf", "ä", "*", "a\\b", "", "'; exit 9; '"]
    ended = await box.run(["printf", "%s\\0", *arguments])
    assert ended.stdout.decode().split("\0")[:-1] == arguments
    told = await box.run('printf %s "$X"; cat', environment={"X": "it's\n$HOME"}, stdin=b"\0\xff\r\n")
    assert told.stdout == b"it's\n$HOME\0\xff\r\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["no-such-program"], 127),
        (["no=program"], 127),
        ("exit 200", 200),
        ("kill -9 $$", 137),
        ("kill $$", 143),
        ("kill -SEGV $$", 128 + signal.SIGSEGV),
    ],
)
async def test_the_exit_code_is_that_of_a_shell(box, command, code):
    assert (await box.run(command)).exit_code == code


@pytest.mark.parametrize(
    "options",
    [
        {"command": []},
        {"command": ["a\0b"]},
        {"command": "a\0b"},
        {"command": "true", "environment": {"A=B": "x"}},
        {"command": "true", "environment": {"A": "x\0"}},
        {"command": "true", "environment": {"": "x"}},
    ],
)
async def test_a_bad_command_or_variable_is_refused(box, options):
    with pytest.raises(SandboxError):
        await box.run(**options)


@pytest.mark.parametrize("cwd", ["none", "file", "link", "link/d", "..", "/etc", "a\0b", "\ud800"])
async def test_a_program_begins_in_a_folder_of_the_sandbox_only(box, cwd):
    await box.run("mkdir -p d; touch file; ln -s . link")
    assert (await box.run("pwd", cwd="d")).stdout.decode() == f"{box.folder}/d\n"
    with pytest.raises(SandboxFileError):
        await box.run("true", cwd=cwd)


async def test_the_newest_output_is_kept(box):
    ended = await box.run("seq 10000; seq 5 >&2", output_bytes=12)
    assert (ended.stdout, ended.stdout_truncated) == (b"\n9999\n10000\n", True)
    assert (ended.stderr, ended.stderr_truncated) == (b"1\n2\n3\n4\n5\n", False)
    ended = await box.run("head -c 30000000 /dev/zero; echo end", seconds=60, output_bytes=1000)
    assert (ended.exit_code, ended.stdout, ended.stdout_truncated) == (0, b"\0" * 996 + b"end\n", True)


async def test_large_input_is_read_or_not(box):
    data = bytes(range(256)) * 20_000
    assert (await box.run(["wc", "-c"], stdin=data)).stdout == b"5120000\n"
    assert (await box.run("exit 4", stdin=data)).exit_code == 4


async def test_python_runs(box):
    assert (await box.run([box.python, "-c", "print(6 * 7)"])).stdout == b"42\n"


async def test_the_time_limit_kills_every_process_and_keeps_the_output(kind, box, number):
    command = f"echo begun; trap '' TERM; (setsid sleep {number} &); sleep {number}"
    ended = await box.run(command, seconds=kind.differs.short)
    assert (ended.exit_code, ended.timed_out, ended.stdout) == (137, True, b"begun\n")
    assert processes_with(f"sleep\x00{number}") == []
    assert (await box.run("echo on")).stdout == b"on\n"


async def test_a_cancelled_run_leaves_no_process(box, number):
    task = asyncio.create_task(box.run(f"setsid sleep {number} & sleep {number}"))
    await until(lambda: len(processes_with(f"sleep\x00{number}")) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_with(f"sleep\x00{number}") == []


@pytest.mark.parametrize("daemon_of", ["setsid {} >/dev/null 2>&1 &", "nohup {} &", "({} &) &"])
async def test_a_program_that_ends_leaves_no_process(box, number, daemon_of):
    assert (await box.run(daemon_of.format(f"sleep {number}") + " echo done")).stdout == b"done\n"
    assert processes_with(f"sleep\x00{number}") == []


async def test_a_process_without_variables_ends_with_the_programs_or_with_the_machine(kind, number):
    async with kind.sandbox() as box:
        long = asyncio.create_task(box.run("while [ ! -e go ]; do sleep 0.05; done"))
        await box.run(f"env -i setsid sleep {number} >/dev/null 2>&1 & true")
        await box.write_file("go", b"")
        assert (await long).exit_code == 0
        if kind.ends_without_variables(box):
            assert processes_with(f"sleep\x00{number}") == []
    for process in processes_with(f"sleep\x00{number}"):
        assert not kind.machine_ends_processes
        os.kill(process, signal.SIGKILL)


async def test_programs_at_once_do_not_end_each_other(kind, box, number):
    """Each of the short ones leaves daemons, which end with it; one is cancelled; the long one runs on."""
    long = asyncio.create_task(
        box.run(f"while [ ! -e go ]; do sleep 0.05; done; sleep {number} & echo end", seconds=120)
    )
    await until(lambda: processes_with(f"sleep {number} & echo end"))
    short = [
        box.run(f"setsid sleep {number}5 & nohup sleep {number}5 & echo {n}; exit {n}", seconds=60) for n in range(8)
    ]
    limited = box.run(f"setsid sleep {number} & sleep {number}", seconds=kind.differs.short)
    cancelled = asyncio.create_task(box.run(f"setsid sleep {number}6 & sleep {number}6"))
    await until(lambda: processes_with(f"sleep\x00{number}6"))
    cancelled.cancel()
    ends = await asyncio.gather(*short, limited)
    assert [(ended.exit_code, ended.stdout) for ended in ends] == [*[(n, b"%d\n" % n) for n in range(8)], (137, b"")]
    await asyncio.wait({cancelled})
    assert processes_with(f"sleep\x00{number}") == []  # also none with 5 or 6 after it
    assert not long.done()
    await box.write_file("go", b"")
    ended = await long
    assert (ended.exit_code, ended.stdout) == (0, b"end\n"), ended
    assert processes_with(f"sleep\x00{number}") == []


async def test_the_event_loop_is_free_while_a_program_runs(box):
    running = asyncio.create_task(box.run("sleep 0.5; echo x"))
    turns = 0
    while not running.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100
    assert (await running).stdout == b"x\n"


async def test_what_is_not_in_force_is_refused_and_the_rest_is_granted(kind):
    async with kind.sandbox() as box:
        given = box.isolation.protections
    missing = set(Protection) - given
    async with kind.sandbox(require=sorted(given)) as box:
        assert box.isolation.protections == given
    if missing:
        with pytest.raises(SandboxRefused) as got:
            async with kind.sandbox(require=list(Protection)):
                raise AssertionError("it has started")
        assert got.value.missing == missing


@pytest.mark.parametrize("require", ["network", ["netwrok"]])
async def test_a_wrong_protection_is_refused(kind, require):
    with pytest.raises(ValueError, match="require"):
        kind.sandbox(require=require)


async def test_a_sandbox_works_only_while_it_is_open(kind):
    box = kind.sandbox()
    with pytest.raises(SandboxError):
        await box.run("true")
    async with box:
        await box.run("true")
    await box.close()
    for call in (box.run("true"), box.read_file("x"), box.write_file("x", b""), box.list_files(), box.snapshot()):
        with pytest.raises(SandboxError):
            await call
    with pytest.raises(SandboxError):
        await box.__aenter__()


async def test_the_programs_of_a_closed_sandbox_are_gone(kind, number):
    async with kind.sandbox() as box:
        task = asyncio.create_task(box.run(f"sleep {number}"))
        await until(lambda: processes_with(f"sleep\x00{number}"))
    [ended] = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(ended, SandboxError) or ended.exit_code == 137
    assert processes_with(f"sleep\x00{number}") == []
