"""The files and snapshots of every kind of sandbox. All give the same results."""

import asyncio

import pytest

from osmosis_grpc.tools.sandbox import SandboxError, SandboxFileError
from tests.tools.sandbox import kinds
from tests.tools.sandbox.left_over import processes_with
from tests.waiting import turns, until

NAMES = ["plain", "two words", "it's", 'a "b"', "line\nbreak", "$(touch x)", "-rf", "EOF", "ä", "*", "a\\b", "end\n"]
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


async def test_files_are_written_read_listed_and_removed(box):
    await box.write_file("a/b/c.txt", b"\xff\x00\r\n")
    assert await box.read_file(f"{box.folder}/a/../a/b/c.txt") == b"\xff\x00\r\n"
    assert (await box.run("cat a/b/c.txt; echo more >>a/b/c.txt; echo x >a/x; echo >a-x; ln -s a l")).exit_code == 0
    assert await box.read_file("a/b/c.txt") == b"\xff\x00\r\nmore\n"
    await box.write_file("a/b/c.txt", b"new")
    found = [(file.path, file.is_folder, file.bytes) for file in await box.list_files(depth=3)]
    some = [("a", True, 0), ("a-x", False, 1), ("a/b", True, 0), ("a/b/c.txt", False, 3), ("a/x", False, 2)]
    assert found == some
    assert [file.path for file in await box.list_files()] == ["a", "a-x"]
    assert [file.path for file in await box.list_files("a", depth=2)] == ["a/b", "a/b/c.txt", "a/x"]
    assert [file.path for file in await box.list_files("a/x")] == ["a/x"]
    await box.remove_file("a/x")
    assert [file.path for file in await box.list_files("a")] == ["a/b"]


@pytest.mark.parametrize("name", NAMES)
async def test_files_with_any_name_and_content(box, name):
    path, data = f"folder/{name}/{name}", b"\0\xffEOF\n'\"$(touch canary)\r\n" * 100
    await box.write_file(path, data)
    assert await box.read_file(path) == await box.read_file(f"{box.folder}/{path}") == data
    assert [info.path for info in await box.list_files(depth=3)] == sorted(["folder", f"folder/{name}", path])
    await box.remove_file(path)
    with pytest.raises(SandboxFileError):
        await box.read_file(path)


async def test_a_name_that_is_no_text_is_listed_and_read_or_refused(kind, box):
    code = "import os; open(b'\\xff', 'w').write('x')"
    assert (await box.run([box.python, "-c", code])).exit_code == 0
    [one] = await box.list_files()
    assert (one.path, one.bytes) == ("\udcff", 1)
    if kind.differs.names_that_are_no_text:
        assert await box.read_file(one.path) == b"x"
    else:
        with pytest.raises(SandboxFileError):
            await box.read_file(one.path)


async def test_a_large_file_arrives_whole_and_its_limits_hold(box):
    data = bytes(range(256)) * 4000
    await box.write_file("f", data)
    assert await box.read_file("f") == data
    await box.write_file("f", b"123")
    assert await box.read_file("f", most_bytes=3) == b"123"
    for call in (box.read_file("f", most_bytes=2), box.write_file("f", b"1234", most_bytes=3)):
        with pytest.raises(SandboxFileError):
            await call
    await box.run("mkdir d")
    for path in ("d", "f/x"):  # refused before the data is read
        with pytest.raises(SandboxFileError):
            await box.write_file(path, data)
    assert (await box.run("ls -A")).stdout == b"d\nf\n"


async def test_a_file_keeps_its_mode_and_gets_a_later_time(kind, box):
    await box.run("printf old > f; chmod 4550 f")
    before = int((await box.run("stat -c %Y f")).stdout)
    await box.write_file("f", b"new")
    mode, after, owner, user = (await box.run("stat -c '%a %Y %u' f; id -u")).stdout.split()
    assert (mode.decode(), owner) == (kind.differs.mode_of_replaced, user)
    assert int(after) > before
    await box.write_file("n/g", b"")
    assert (await box.run("stat -c '%a %s' n n/g; ls -A n")).stdout.split()[::2] == [b"755", b"644", b"g"]


async def test_a_reader_sees_the_old_or_the_new_file(box, number):
    old, new = b"old\n" * 20_000, b"new\n" * 20_000
    await box.write_file("f", old)
    reader = asyncio.create_task(box.run(f": {number}; until uniq -c f; [ -e go ]; do :; done | sort -u", seconds=60))
    await until(lambda: processes_with(f": {number}"))
    for _ in range(5):
        await box.write_file("f", new)
        await box.write_file("f", old)
    await box.write_file("go", b"")
    seen = (await reader).stdout.split(b"\n")[:-1]
    assert {line.strip() for line in seen} <= {b"20000 old", b"20000 new"}
    assert seen


@pytest.mark.parametrize("path", ["..", "../x", "/etc/passwd", "a/../../x", "/work/../etc/passwd", "x\0y", "\ud800"])
async def test_a_path_outside_of_the_folder_is_refused(box, path):
    for call in (box.read_file(path), box.write_file(path, b""), box.list_files(path), box.remove_file(path)):
        with pytest.raises(SandboxFileError):
            await call


@pytest.mark.parametrize("made", ["ln -s /etc/passwd file", "ln -s x file", "mkdir file", "mkfifo file"])
async def test_only_a_file_is_read_replaced_and_removed(box, made):
    await box.run(f"echo x > x; {made}")
    for call in (box.read_file("file"), box.write_file("file", b"x"), box.remove_file("file")):
        with pytest.raises(SandboxFileError):
            await call


@pytest.mark.parametrize("path", ["none", "none/x", "x/y", "", "."])
async def test_what_is_no_file_is_not_read(box, path):
    await box.write_file("x", b"")
    for call in (box.read_file(path), box.remove_file(path)):
        with pytest.raises(SandboxFileError):
            await call
    if path not in ("", "."):
        with pytest.raises(SandboxFileError):
            await box.list_files(path)


@pytest.mark.parametrize("path", ["out/x", "here/x", "a/out/x"])
async def test_a_folder_that_is_a_link_leads_nowhere(box, path):
    await box.run("mkdir a; ln -s /tmp out; ln -s . here; ln -s /tmp a/out; echo x > x")
    for call in (box.read_file(path), box.write_file(path, b"x"), box.remove_file(path), box.list_files(path)):
        with pytest.raises(SandboxFileError):
            await call
    assert (await box.run("cat x; ls /tmp/x")).stdout == b"x\n"


async def test_a_snapshot_begins_new_sandboxes(kind, box):
    await box.run(
        "mkdir -p a; echo old >a/file; chmod 640 a/file; ln -s file a/link; mkfifo a/pipe; echo x >'it'\\''s'"
    )
    await box.run("touch -d @1234567890 a/file; chmod 555 a")
    async with await box.snapshot() as snapshot:
        assert snapshot.bytes > 0
        await box.run("chmod 755 a; echo changed >a/file")
        async with snapshot.fork() as first, snapshot.fork() as second:
            assert (first.folder == box.folder) == (second.folder == box.folder)
            seen = await first.run(
                "cat a/link \"it's\"; readlink a/link; stat -c '%a %u' a/file a; stat -c %Y a/file; id -u"
            )
            old, quoted, link, mode, folder_mode, time, user = seen.stdout.decode().splitlines()
            assert (old, quoted, link, time) == ("old", "x", "file", "1234567890")
            assert (mode, folder_mode) == (f"640 {user}", f"555 {user}")
            assert ((await first.run("test -p a/pipe")).exit_code == 0) == kind.differs.copies_pipes
            await first.run("chmod 755 a; echo first >a/file")
            assert await second.read_file("a/file") == b"old\n"
            assert await box.read_file("a/file") == b"changed\n"


async def test_a_fork_has_no_file_that_was_deleted(kind):
    async with kind.filled() as box:
        await box.run("touch .bashrc new; rm -f .bashrc")
        async with await box.snapshot() as snapshot, snapshot.fork() as fork:
            assert "new" in [info.path for info in await fork.list_files()]
            assert ".bashrc" not in [info.path for info in await fork.list_files()]
            await fork.run("rm new; mkdir later")
            async with await fork.snapshot() as second, second.fork() as last:
                assert (await last.run("ls -A")).stdout == (await fork.run("ls -A")).stdout
                assert {"new", ".bashrc"}.isdisjoint(info.path for info in await last.list_files())


async def test_a_snapshot_is_refused_while_a_program_runs(box, number):
    task = asyncio.create_task(box.run(f"sleep {number}"))
    await until(lambda: processes_with(f"sleep\x00{number}"))
    with pytest.raises(SandboxError):
        await box.snapshot()
    task.cancel()
    await asyncio.wait({task})
    async with await box.snapshot():
        pass


async def test_a_snapshot_that_is_too_large_is_refused_and_the_sandbox_stays(kind):
    async with kind.small() as box:
        await box.run(f"head -c {2 * kinds.SNAPSHOT_BYTES} /dev/zero >big")
        with pytest.raises(SandboxError):
            await box.snapshot()
        await box.remove_file("big")
        async with await box.snapshot() as snapshot:
            assert snapshot.bytes < kinds.SNAPSHOT_BYTES


async def test_a_file_that_programs_cannot_read_is_copied_or_the_snapshot_refused(kind, box):
    await box.run("echo x >f; chmod 000 f")
    if kind.differs.copies_unreadable:
        async with await box.snapshot() as snapshot, snapshot.fork() as fork:
            assert (await fork.run("chmod 600 f; cat f")).stdout == b"x\n"
    else:
        with pytest.raises(SandboxError):
            await box.snapshot()


async def test_what_begins_while_a_snapshot_is_made_is_not_in_it(box):
    await box.run("for i in $(seq 300); do echo old >$i; done", seconds=60)
    copying = asyncio.create_task(box.snapshot())
    await turns(1)  # the snapshot begins first
    changes = [box.run("for i in *; do echo new >$i; done"), box.write_file("x", b"new"), box.remove_file("7")]
    await asyncio.gather(*changes)
    async with await copying as snapshot, snapshot.fork() as fork:
        assert (await fork.run("cat * | sort | uniq -c")).stdout.split() == [b"300", b"old"]
    assert (await box.run("cat * | sort | uniq -c")).stdout.split()[-1:] == [b"new"]


async def test_a_closed_snapshot_begins_nothing(box):
    async with await box.snapshot() as snapshot:
        pass
    await snapshot.close()
    with pytest.raises(SandboxError):
        async with snapshot.fork():
            raise AssertionError("it has started")
