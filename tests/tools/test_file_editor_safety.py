"""The file editor never leaves its folder, and never writes half a file or a large one."""

import asyncio
import contextlib

import pytest

from osmosis_grpc.protocol.errors import ToolExecutionError
from osmosis_grpc.tools.file_editor import file_editor_tool
from osmosis_grpc.tools.sandbox import LocalSandbox, SandboxFileError


@pytest.fixture
async def box():
    async with LocalSandbox(method="processes") as made:  # the method with the least protection
        yield made


@pytest.fixture
def secret(tmp_path):
    """A file outside, which is neither read nor changed."""
    path = tmp_path / "secret"
    path.write_text("canary")
    yield path
    assert path.read_text() == "canary"
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


@pytest.mark.row("ARL 42")
async def test_no_path_and_no_link_leads_out(box, secret):
    tool = file_editor_tool(box)
    await box.run(f"ln -s {secret} link; ln -s {secret.parent} folder; ln -s / root; mkdir a; ln -s .. a/up")
    paths = [str(secret), f"../../{secret}", "link", "folder/secret", f"root{secret}", "a/up/x", "..", "a/../.."]
    for path in paths:
        for arguments in (
            {"command": "view"},
            {"command": "create", "file_text": "changed"},
            {"command": "str_replace", "old_str": "canary", "new_str": "changed"},
            {"command": "insert", "insert_line": 0, "new_str": "changed"},
        ):
            with pytest.raises(SandboxFileError) as got:
                await tool.run({"path": path, **arguments})
            assert "canary" not in str(got.value)


@pytest.mark.slow
@pytest.mark.row("ARL 42")
async def test_no_race_with_a_program_leads_out(box, secret):
    """A program replaces a folder by a link and back, all the time."""
    tool = file_editor_tool(box)
    swap = f"while :; do mkdir -p d; rm -rf d; ln -s {secret.parent} d; rm d; done"
    task = asyncio.create_task(box.run(swap, seconds=100))
    for _ in range(300):
        for arguments in ({"command": "create", "file_text": "changed"}, {"command": "view"}):
            with contextlib.suppress(ToolExecutionError):
                assert "canary" not in str(await tool.run({"path": "d/secret", **arguments}))
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.row("ARL 42")
async def test_large_and_binary_files_are_refused(box):
    tool = file_editor_tool(box, max_file_size=10)
    with pytest.raises(SandboxFileError, match="big would have 11 bytes; at most 10"):
        await tool.run({"command": "create", "path": "big", "file_text": "x" * 11})
    await box.write_file("big", b"x" * 11)
    await box.write_file("binary", b"a\0b")
    with pytest.raises(SandboxFileError, match="big has more than 10 bytes"):
        await tool.run({"command": "view", "path": "big"})
    with pytest.raises(SandboxFileError, match="binary is not a text file"):
        await tool.run({"command": "view", "path": "binary"})
    await box.write_file("f", b"0123456789")
    with pytest.raises(SandboxFileError, match="f would have 12 bytes"):
        await tool.run({"command": "insert", "path": "f", "insert_line": 1, "new_str": "x"})
    assert await box.read_file("f") == b"0123456789"


@pytest.mark.row("ARL 42")
async def test_a_reader_sees_the_old_or_the_new_content(box):
    """A program reads the file all the time, and would see a part of it."""
    size = 300_000
    await box.write_file("f", b"a" * size)
    read = "while [ ! -e stop ]; do tr -d 'a' <f | wc -c; tr -d 'b' <f | wc -c; done | sort -u"
    task = asyncio.create_task(box.run(read))
    for n in range(60):
        await box.write_file("f", (b"b" if n % 2 else b"a") * size)
    await box.write_file("stop", b"")
    assert set((await task).stdout.split()) <= {b"0", str(size).encode()}
    assert [file.path for file in await box.list_files()] == ["f", "stop"]
