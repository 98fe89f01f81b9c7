"""The three searches, their options, and a pattern that never ends."""

import re

import pytest

from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.tools.sandbox import LocalSandbox, SandboxFileError
from osmosis_grpc.tools.search import search_tool

FILES = {
    "b.py": b"def Foo():\n    return food\n# foo foo\n",
    "a/one.txt": b"foo\r\nbar\r\n",
    "a/deep/two.md": b"nothing\n",
    "a/deep/binary.py": b"foo\0foo",
    ".git/config": b"foo\n",
    "node_modules/x.js": b"foo\n",
    'it\'s "odd" $(x).txt': b"foo\n",
}


@pytest.fixture
async def box():
    async with LocalSandbox() as made:
        for path, data in FILES.items():
            await made.write_file(path, data)
        await made.run("ln -s b.py link.py; mkfifo pipe; ln -s . loop")
        yield made


async def places(box, pattern="foo", **arguments):
    got = await search_tool(box).run({"command": "search_text", "pattern": pattern, **arguments})
    return [f"{each['file']}:{each['line_number']}:{each['column']}" for each in got["matches"]]


@pytest.mark.row("ARL 43")
async def test_text_is_found_in_a_fixed_order(box):
    odd = 'it\'s "odd" $(x).txt:1:1'
    assert await places(box) == ["a/one.txt:1:1", "b.py:1:5", "b.py:2:12", "b.py:3:3", "b.py:3:7", odd]
    assert await places(box, case_sensitive=True, file_extensions=[".py"]) == ["b.py:2:12", "b.py:3:3", "b.py:3:7"]
    assert await places(box, whole_words=True, path="b.py") == ["b.py:1:5", "b.py:3:3", "b.py:3:7"]
    assert await places(box, "fo+d?$", regex=True, path="b.py") == ["b.py:2:12", "b.py:3:7"]
    assert await places(box, "fo+", regex=True, whole_words=True, path="a") == ["a/one.txt:1:1"]
    assert await places(box, "f.o") == []


@pytest.mark.row("ARL 43")
async def test_a_match_has_its_line_and_its_context(box):
    got = await search_tool(box).run(
        {"command": "search_text", "pattern": "food", "context_lines": 1, "path": f"{box.folder}/b.py"}
    )
    (match,) = got["matches"]
    assert (match["match_text"], match["line_content"]) == ("food", "    return food")
    assert match["context"] == ["1: def Foo():", "2:     return food", "3: # foo foo"]
    assert (got["files_searched"], got["total_matches"], got["truncated"]) == (1, 1, False)


@pytest.mark.row("ARL 43")
async def test_the_total_is_true_although_fewer_are_returned(box):
    got = await search_tool(box, max_results=4).run({"command": "search_text", "pattern": "foo", "max_results": 99})
    assert (len(got["matches"]), got["total_matches"], got["truncated"]) == (4, 6, True)
    assert (got["files_searched"], got["files_skipped"]) == (4, 1)


@pytest.mark.row("ARL 43")
async def test_files_and_folders_are_found_by_name(box):
    search = search_tool(box)
    got = await search.run({"command": "search_files", "pattern": r"\.(py|md)$", "regex": True})
    assert [each["path"] for each in got["matches"]] == ["a/deep/binary.py", "a/deep/two.md", "b.py"]
    assert got["matches"][2] == {"path": "b.py", "name": "b.py", "type": "file", "size": len(FILES["b.py"])}
    got = await search.run({"command": "search_dir", "pattern": "deep"})
    expected = {"path": "a/deep", "relative_path": "a/deep", "name": "deep", "type": "folder", "depth": 2}
    assert got["matches"] == [expected]


@pytest.mark.row("ARL 43")
async def test_a_pattern_that_never_ends_is_stopped(box):
    await box.write_file("long", b"a" * 60)
    with pytest.raises(ToolArgumentError, match=re.escape("pattern: the search took longer than 0.5 s")):
        await search_tool(box, timeout=0.5).run(
            {"command": "search_text", "pattern": "^(a+)+$b", "regex": True, "path": "long"}
        )


@pytest.mark.parametrize(
    ("arguments", "error", "problem"),
    [
        ({"pattern": "(", "regex": True}, ToolArgumentError, "pattern: missing \\)"),
        ({"pattern": ""}, ToolArgumentError, "pattern: it is empty"),
        ({"pattern": "x", "max_results": 0}, ToolArgumentError, "max_results"),
        ({"pattern": "x", "path": "../.."}, SandboxFileError, r"path: \.\./\.\. is outside"),
        ({"pattern": "x", "path": "/etc"}, SandboxFileError, "path: /etc is outside"),
        ({"pattern": "x", "path": "nosuch"}, SandboxFileError, "nosuch does not exist"),
        ({"pattern": "x", "path": "loop"}, SandboxFileError, "symbolic link"),
    ],
)
@pytest.mark.row("ARL 43")
async def test_wrong_arguments_name_the_parameter(box, arguments, error, problem):
    with pytest.raises(error, match=problem):
        await search_tool(box).run({"command": "search_text", **arguments})
