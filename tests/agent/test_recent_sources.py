"""The user's modules are imported from their newest source, whatever compiled files are there."""

import os
import py_compile
import sys

import pytest

from osmosis_grpc.agent.loader import load_object


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder of a user. Its modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def edited_at_once(path, old, new):
    """Compile a source, and write one of equal length in the same second."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(old)
    py_compile.compile(str(path))
    time = path.stat().st_mtime_ns
    path.write_text(new)
    os.utime(path, ns=(time, time))


@pytest.mark.parametrize("module", ["edited_agent", "edited_package.inner"])
def test_a_module_that_was_edited_within_a_second_is_read_again(folder, module):
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    edited_at_once(path, "X = 1\n", "X = 2\n")
    assert load_object(f"{module}:X") == 2


def test_an_old_compiled_file_stays_in_use(folder):
    path = folder / "settled_agent.py"
    path.write_text("X = 1\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    compiled = py_compile.compile(str(path))
    inode = os.stat(compiled).st_ino
    assert load_object("settled_agent:X") == 1
    assert os.stat(compiled).st_ino == inode
