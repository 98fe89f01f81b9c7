"""The five commands of the file editor. Every byte outside of an edit stays."""

import asyncio
import contextlib

import pytest

from osmosis_grpc.protocol.errors import ToolArgumentError, ToolExecutionError
from osmosis_grpc.tools.file_editor import file_editor_tool
from osmosis_grpc.tools.sandbox import LocalSandbox, SandboxFileError


@pytest.fixture
async def box():
    async with LocalSandbox() as made:
        yield made


@pytest.fixture
def edit(box):
    tool = file_editor_tool(box)

    async def run(command, path, **arguments):
        return await tool.run({"command": command, "path": path, **arguments})

    return run


@pytest.mark.row("ARL 41")
async def test_a_file_is_viewed_with_numbers_and_in_a_range(box, edit):
    await box.write_file("a/f.txt", b"\xef\xbb\xbfone\r\ntwo\nthree")
    got = await edit("view", "a/f.txt")
    assert got == {
        "content": "     1\tone\n     2\ttwo\n     3\tthree",
        "type": "file",
        "total_lines": 3,
        "displayed_lines": 3,
    }
    assert (await edit("view", f"{box.folder}/a/f.txt", view_range=[2, -1]))["displayed_lines"] == 2
    assert (await edit("view", "./a//f.txt", view_range=[2, 2]))["content"] == "     2\ttwo"
    for wrong in ([0, 1], [2, 4], [3, 2], [1]):
        with pytest.raises(ToolArgumentError, match="view_range"):
            await edit("view", "a/f.txt", view_range=wrong)


@pytest.mark.row("ARL 41")
async def test_a_folder_is_viewed_two_levels_deep_without_hidden_files(box, edit):
    for path in ("a/b/c", "a/f.txt", ".git/x", "z"):
        await box.write_file(path, b"")
    assert (await edit("view", "."))["content"] == "a/\na/b/\na/f.txt\nz"
    assert await edit("view", "a/b") == {"content": "a/b/c", "type": "folder", "entries": 1}


@pytest.mark.row("ARL 41")
async def test_a_file_is_created_once(box, edit):
    await edit("create", "new/dir/f.py", file_text="x = 1")
    assert await box.read_file("new/dir/f.py") == b"x = 1"
    with pytest.raises(ToolArgumentError, match="exists; change it"):
        await edit("create", "new/dir/f.py", file_text="")
    with pytest.raises(ToolArgumentError, match="exists"):
        await edit("create", "new", file_text="")


@pytest.mark.parametrize(
    ("before", "arguments", "after"),
    [
        (b"a\tb\nc", {"old_str": "b\nc", "new_str": "B"}, b"a\tB"),
        (b"a\r\nb\r\nc\r\n", {"old_str": "a\nb", "new_str": "1\n2\n3"}, b"1\r\n2\r\n3\r\nc\r\n"),
        (b"\xef\xbb\xbfx = 1\n", {"old_str": "x = 1", "new_str": "x = 2"}, b"\xef\xbb\xbfx = 2\n"),
        (b"\xff\xfe one \xe9\n", {"old_str": "one", "new_str": "two"}, b"\xff\xfe two \xe9\n"),
        (b"only\x0c\x1c\x85lines\n", {"old_str": "only", "new_str": ""}, b"\x0c\x1c\x85lines\n"),
        (b"mixed\r\nends\n", {"old_str": "ends", "new_str": "end\nmore"}, b"mixed\r\nend\nmore\n"),
    ],
)
@pytest.mark.row("ARL 41")
async def test_a_unique_text_is_replaced_and_no_other_byte(box, edit, before, arguments, after):
    await box.write_file("f", before)
    await edit("str_replace", "f", **arguments)
    assert await box.read_file("f") == after
    await edit("undo_edit", "f")
    assert await box.read_file("f") == before


@pytest.mark.parametrize(
    ("old", "problem"), [("a", r"2 times, in the lines \[1, 3\]"), ("z", "not in the file"), ("", "empty")]
)
@pytest.mark.row("ARL 41")
async def test_a_text_that_is_missing_or_there_twice_is_refused(box, edit, old, problem):
    await box.write_file("f", b"a\nb\na\n")
    with pytest.raises(ToolArgumentError, match=f"old_str: .*{problem}"):
        await edit("str_replace", "f", old_str=old, new_str="x")
    assert await box.read_file("f") == b"a\nb\na\n"


@pytest.mark.parametrize(
    ("before", "line", "new", "after"),
    [
        (b"a\nb\n", 0, "x", b"x\na\nb\n"),
        (b"a\nb\n", 1, "x\n", b"a\nx\nb\n"),
        (b"a\nb\n", 2, "x", b"a\nb\nx\n"),
        (b"a\nb", 2, "x", b"a\nb\nx"),
        (b"a\r\nb\r\n", 1, "x\ny", b"a\r\nx\r\ny\r\nb\r\n"),
        (b"\xef\xbb\xbfa\n", 0, "x", b"\xef\xbb\xbfx\na\n"),
        (b"", 0, "x", b"x\n"),
    ],
)
@pytest.mark.row("ARL 41")
async def test_lines_are_inserted_after_a_line(box, edit, before, line, new, after):
    await box.write_file("f", before)
    got = await edit("insert", "f", insert_line=line, new_str=new)
    assert await box.read_file("f") == after
    assert got["lines_inserted"] == new.rstrip("\n").count("\n") + 1
    with pytest.raises(ToolArgumentError, match="insert_line: 99 is not from 0 to"):
        await edit("insert", "f", insert_line=99, new_str="x")


@pytest.mark.row("ARL 41")
async def test_edits_are_taken_back_one_by_one_and_a_created_file_is_removed(box, edit):
    await edit("create", "f", file_text="1\n")
    await edit("str_replace", "./f", old_str="1", new_str="2")
    await edit("insert", f"{box.folder}/f", insert_line=1, new_str="3")
    await edit("create", "other", file_text="x")
    for content in (b"2\n", b"1\n"):
        await edit("undo_edit", "f")
        assert await box.read_file("f") == content
    assert "removed" in (await edit("undo_edit", "f"))["message"]
    with pytest.raises(SandboxFileError, match="f does not exist"):
        await box.read_file("f")
    with pytest.raises(ToolArgumentError, match="no edit of f to take back"):
        await edit("undo_edit", "f")
    assert await box.read_file("other") == b"x"


@pytest.mark.row("ARL 41")
async def test_two_edits_at_once_both_take_effect(box, edit):
    await box.write_file("f", "".join(f"line {n} end\n" for n in range(20)).encode())
    await asyncio.gather(*(edit("str_replace", "f", old_str=f" {n} ", new_str=" x ") for n in range(20)))
    assert await box.read_file("f") == b"line x end\n" * 20


@pytest.mark.row("ARL 41")
async def test_a_long_answer_is_clipped(box):
    tool = file_editor_tool(box, max_response_length=100)
    await box.write_file("f", b"x" * 1000)
    got = await tool.run({"command": "view", "path": "f"})
    assert got["content"].endswith("x\n<response clipped>")
    assert len(got["content"]) < 130


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"command": "delete"}, "command"),
        ({"command": "create"}, "file_text: create needs it"),
        ({"command": "str_replace"}, "old_str: str_replace needs it"),
        ({"command": "str_replace", "old_str": "x"}, "new_str: str_replace needs it"),
        ({"command": "insert", "insert_line": 0}, "new_str: insert needs it"),
        ({"command": "insert", "new_str": "x"}, "insert_line: insert needs it"),
    ],
)
@pytest.mark.row("ARL 41")
async def test_wrong_arguments_name_the_parameter(edit, arguments, problem):
    with pytest.raises(ToolArgumentError, match=problem):
        await edit(path="f", **arguments)


@pytest.fixture
async def bare_box():
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
async def test_no_path_and_no_link_leads_out(bare_box, secret):
    tool = file_editor_tool(bare_box)
    await bare_box.run(f"ln -s {secret} link; ln -s {secret.parent} folder; ln -s / root; mkdir a; ln -s .. a/up")
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
async def test_no_race_with_a_program_leads_out(bare_box, secret):
    """A program replaces a folder by a link and back, all the time."""
    tool = file_editor_tool(bare_box)
    swap = f"while :; do mkdir -p d; rm -rf d; ln -s {secret.parent} d; rm d; done"
    task = asyncio.create_task(bare_box.run(swap, seconds=100))
    for _ in range(300):
        for arguments in ({"command": "create", "file_text": "changed"}, {"command": "view"}):
            with contextlib.suppress(ToolExecutionError):
                assert "canary" not in str(await tool.run({"path": "d/secret", **arguments}))
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.row("ARL 42")
async def test_large_and_binary_files_are_refused(bare_box):
    tool = file_editor_tool(bare_box, max_file_size=10)
    with pytest.raises(SandboxFileError, match="big would have 11 bytes; at most 10"):
        await tool.run({"command": "create", "path": "big", "file_text": "x" * 11})
    await bare_box.write_file("big", b"x" * 11)
    await bare_box.write_file("binary", b"a\0b")
    with pytest.raises(SandboxFileError, match="big has more than 10 bytes"):
        await tool.run({"command": "view", "path": "big"})
    with pytest.raises(SandboxFileError, match="binary is not a text file"):
        await tool.run({"command": "view", "path": "binary"})
    await bare_box.write_file("f", b"0123456789")
    with pytest.raises(SandboxFileError, match="f would have 12 bytes"):
        await tool.run({"command": "insert", "path": "f", "insert_line": 1, "new_str": "x"})
    assert await bare_box.read_file("f") == b"0123456789"


@pytest.mark.row("ARL 42")
async def test_a_reader_sees_the_old_or_the_new_content(bare_box):
    """A program reads the file all the time, and would see a part of it."""
    size = 300_000
    await bare_box.write_file("f", b"a" * size)
    read = "while [ ! -e stop ]; do tr -d 'a' <f | wc -c; tr -d 'b' <f | wc -c; done | sort -u"
    task = asyncio.create_task(bare_box.run(read))
    for n in range(60):
        await bare_box.write_file("f", (b"b" if n % 2 else b"a") * size)
    await bare_box.write_file("stop", b"")
    assert set((await task).stdout.split()) <= {b"0", str(size).encode()}
    assert [file.path for file in await bare_box.list_files()] == ["f", "stop"]
