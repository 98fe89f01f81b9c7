"""A program that a process starts can share the process's lock: the lock ends with the last of them."""

import os
import subprocess
import sys

import pytest

from osmosis_grpc.storage.lock_file import Lock, Locked, is_held, share

CHILD = """
import sys
from pathlib import Path
from osmosis_grpc.storage.lock_file import Lock, share
path = Path(sys.argv[1])
share(path, int(sys.argv[2]))
lock = Lock(path)
print("has it", flush=True)
sys.stdin.readline()
lock.close()
print("closed it", flush=True)
sys.stdin.readline()
"""


def child(path, lock):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), str(lock.descriptor)],
        pass_fds=[lock.descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_shared_lock_is_held_while_one_of_both_has_it(tmp_path):
    path = tmp_path / "lock"
    lock = Lock(path)
    with child(path, lock) as other:
        assert other.stdout.readline() == "has it\n"
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "closed it\n"
        assert is_held(path), "the close of a shared lock releases nothing"
        with pytest.raises(Locked, match=str(os.getpid())):
            Lock(path)
    with child(path, lock) as other:
        assert other.stdout.readline() == "has it\n"
        lock.leave()
        assert is_held(path), "the program has it still"
        other.kill()
        other.wait()
    assert not is_held(path)
    Lock(path).close()


def test_a_lock_is_shared_once(tmp_path):
    path = tmp_path / "lock"
    lock = Lock(path)
    share(path, os.dup(lock.descriptor))
    shared = Lock(path)
    shared.close()
    assert is_held(path)
    with pytest.raises(Locked):
        Lock(path)
    lock.close()
    assert not is_held(path)
