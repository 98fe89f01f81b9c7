"""ARL row 50: programs and files of a pod, against a fake API server that speaks the real wire."""

import asyncio

import pytest

from osmosis_grpc import supervise
from osmosis_grpc.tools.sandbox import Sandbox, SandboxError, SandboxFileError
from tests.waiting import turns, until

pytestmark = pytest.mark.adapters

NAMES = [
    "plain",
    "two words",
    "it's",
    'a "b"',
    "line\nbreak",
    "$(touch x)",
    "-rf",
    "EOF",
    "ä",
    "*",
    "a\\b",
    "trailing\n",
]


@pytest.mark.row("ARL 50")
async def test_exit_codes_and_separate_outputs(box):
    sandbox: Sandbox = box
    ended = await sandbox.run("echo out; echo err >&2; exit 3")
    assert (ended.exit_code, ended.stdout, ended.stderr) == (3, b"out\n", b"err\n")
    assert type(ended.exit_code) is int
    assert not ended.timed_out
    assert (await sandbox.run("true")).exit_code == 0
    assert (await sandbox.run(["no-such-program"])).exit_code == 127
    killed = await sandbox.run("kill -9 $$")
    assert (killed.exit_code, killed.stderr) == (137, b"")


@pytest.mark.row("ARL 50")
async def test_arguments_variables_and_input_arrive_unchanged(box):
    arguments = [*NAMES, "", "'; exit 9; '"]
    ended = await box.run(["printf", "%s\\0", *arguments], environment={"X": "it's $HOME"})
    assert ended.stdout.decode().split("\0")[:-1] == arguments
    told = await box.run('printf %s "$X"; cat', environment={"X": "it's\n$HOME"}, stdin=b"\0\xff\r\n")
    assert told.stdout == b"it's\n$HOME\0\xff\r\n"


@pytest.mark.row("ARL 50")
async def test_the_logged_arguments_of_an_exec_hold_neither_command_nor_variables(api, box):
    await box.run("echo canary-command", environment={"KEY": "canary-variable"})
    assert "canary" not in str(api.exec_arguments)


@pytest.mark.row("ARL 50")
async def test_large_input_read_or_not(box):
    data = bytes(range(256)) * 20_000
    assert (await box.run(["sha256sum"], stdin=data)).exit_code == 0
    assert (await box.run(["wc", "-c"], stdin=data)).stdout == b"5120000\n"
    assert (await box.run("exit 4", stdin=data)).exit_code == 4


@pytest.mark.row("ARL 50")
async def test_a_hundred_megabytes_of_output_are_capped(box):
    ended = await box.run("head -c 100000000 /dev/zero; echo end; echo err >&2", seconds=60, output_bytes=1000)
    assert ended.exit_code == 0
    assert ended.stdout == b"\0" * 996 + b"end\n"
    assert (ended.stdout_truncated, ended.stderr_truncated, ended.stderr) == (True, False, b"err\n")


@pytest.mark.row("ARL 50")
async def test_the_time_limit_kills_the_remote_processes(api, box):
    command = "echo begun; trap '' TERM; (setsid sleep 4711 &) ; sleep 4712"
    ended = await box.run(command, seconds=1.0)
    assert (ended.timed_out, ended.exit_code, ended.stdout, ended.stderr) == (True, 137, b"begun\n", b"")
    await api.left(box.name)
    assert (await box.run("echo on")).stdout == b"on\n"


@pytest.mark.row("ARL 50")
async def test_no_process_is_left_after_a_program(api, box):
    assert (await box.run("setsid sleep 4711 >/dev/null 2>&1 & echo done")).stdout == b"done\n"
    await api.left(box.name)


@pytest.mark.row("ARL 50")
async def test_a_cancelled_caller_kills_its_program_only(api, box):
    first = asyncio.ensure_future(box.run("sleep 4711"))
    other = asyncio.ensure_future(box.run("read x; echo $x; sleep 4712", stdin=b"hi\n", seconds=100))
    await until(lambda: {"sleep 4711 ", "sleep 4712 "} <= set(api.processes(box.name)))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert "sleep 4711 " not in api.processes(box.name)
    assert "sleep 4712 " in api.processes(box.name)
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
    await api.left(box.name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.row("ARL 50")
async def test_files_with_any_name_and_content(box, name):
    path, data = f"folder/{name}/{name}", b"\0\xffEOF\n'\"$(touch canary)\r\n" * 100
    await box.write_file(path, data)
    assert await box.read_file(path) == data
    assert await box.read_file(f"{box.folder}/{path}") == data
    assert [info.path for info in await box.list_files(depth=3)] == sorted(["folder", f"folder/{name}", path])
    await box.remove_file(path)
    with pytest.raises(SandboxFileError, match="does not exist"):
        await box.read_file(path)


@pytest.mark.row("ARL 50")
async def test_a_file_is_written_as_a_whole_and_keeps_its_mode(box):
    await box.run("printf old > f; chmod 4550 f; mkdir d; ln -s /etc l; ln -s f m")
    await box.write_file("f", b"")
    assert (await box.run("stat -c '%a %s' f; ls -A")).stdout == b"4550 0\nd\nf\nl\nm\n"
    [one] = await box.list_files("f")
    assert (one.path, one.is_folder, one.bytes) == ("f", False, 0)
    for path, problem in {
        "l/hostname": "symbolic link",
        "m": "symbolic link",
        "d": "is not a file",
        "none": "does not exist",
        "../etc/hostname": "outside",
        "/etc/hostname": "outside",
        "": "no path",
        "a\0b": "no path",
    }.items():
        with pytest.raises(SandboxFileError, match=problem):
            await box.read_file(path)
    for path in ("l/x", "m", "d", "../x", "f/x"):
        with pytest.raises(SandboxFileError):
            await box.write_file(path, b"x")
    with pytest.raises(SandboxFileError, match="too large"):
        await box.read_file("f2", most_bytes=2) if not await box.write_file("f2", b"123") else None
    with pytest.raises(SandboxFileError, match="limit is 2"):
        await box.write_file("f", b"123", most_bytes=2)
    with pytest.raises(SandboxFileError, match="none: is not a folder"):
        await box.run("true", cwd="none")
    with pytest.raises(SandboxFileError, match="does not exist"):
        await box.list_files("none")
    with pytest.raises(SandboxFileError, match="does not exist"):
        await box.remove_file("none")
    for wrong in ([], ["a\0b"], ["a=b"]):
        with pytest.raises(SandboxError, match="command"):
            await box.run(wrong)


@pytest.mark.row("ARL 50")
async def test_a_snapshot_begins_another_pod(api, cluster):
    async with cluster(snapshot_bytes=1_000_000) as made, made.sandbox() as box:
        await box.write_file("a/it's", b"\0first")
        await box.run("ln -s a l; chmod 700 a")
        sleeping = asyncio.ensure_future(box.run("sleep 4711"))
        await until(lambda: "sleep 4711 " in api.processes(box.name))
        with pytest.raises(SandboxError, match="a program runs"):
            await box.snapshot()
        sleeping.cancel()
        await asyncio.wait({sleeping})
        async with await box.snapshot() as snapshot:
            await box.write_file("a/it's", b"second")
            async with snapshot.fork() as one, snapshot.fork() as two:
                await one.write_file("a/it's", b"third")
                assert await two.read_file("a/it's") == b"\0first"
                assert (await two.run("readlink l; stat -c %a a")).stdout == b"a\n700\n"
                assert len({one.name, two.name, box.name} & api.pods.keys()) == 3
            await box.run("head -c 2000000 /dev/zero > big")
            with pytest.raises(SandboxError, match="more than 1000000 bytes"):
                await box.snapshot()
        with pytest.raises(SandboxError, match="closed"):
            async with snapshot.fork():
                pass
    assert not api.pods


@pytest.mark.row("ARL 50")
async def test_what_begins_while_a_snapshot_is_made_is_not_in_it(box):
    await box.run("for i in $(seq 300); do echo old >$i; done")
    copying = asyncio.ensure_future(box.snapshot())
    await turns(1)  # the snapshot begins first
    changes = [box.run("for i in *; do echo new >$i; done"), box.write_file("x", b"new"), box.remove_file("7")]
    await asyncio.gather(*changes)
    async with await copying as snapshot, snapshot.fork() as fork:
        assert (await fork.run("cat * | sort | uniq -c")).stdout.split() == [b"300", b"old"]


@pytest.mark.row("ARL 50")
async def test_the_event_loop_is_free_while_a_program_runs(box):
    running = asyncio.ensure_future(box.run("sleep 0.5; echo x"))
    turns = 0
    while not running.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100
    assert (await running).stdout == b"x\n"


async def program(made, fail, caplog):
    """The error reaches the caller, and the sandbox runs the next program."""
    async with made.sandbox() as box:
        fail()
        with pytest.raises(OSError, match="injected"):
            await box.run("true")
        assert (await box.run("echo next")).stdout == b"next\n"


async def clean_up(made, fail, caplog):
    """It is logged, and the next clean-up removes nothing that is in use."""
    fail()
    await until(lambda: "tools.container_clean_up failed" in caplog.text)
    async with made.sandbox() as box:
        assert (await box.run("echo next")).stdout == b"next\n"


async def warm_up(made, fail, caplog):
    """It is logged, and containers are made again."""
    fail()
    async with made.sandbox():  # takes a warm one, so that the next is made
        pass
    await until(lambda: "tools.container_warm_up failed" in caplog.text)
    async with made.sandbox() as box:
        assert (await box.run("echo next")).stdout == b"next\n"


SCENARIOS = {
    "tools.container_warm_up": warm_up,
    "tools.run_in_container": program,
    "tools.container_stdin": program,
    "tools.container_output": program,
    "tools.container_clean_up": clean_up,
}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_job_of_a_cluster_that_raises_runs_again_or_is_reported(name, cluster, monkeypatch, caplog):
    monkeypatch.setattr("osmosis_grpc.tools.containers.machine.CLEAN_EVERY", 0.05)
    async with cluster(warm=1) as made:
        await SCENARIOS[name](made, lambda: supervise.inject(name, OSError(f"injected into {name}")), caplog)
