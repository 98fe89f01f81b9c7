"""Folders that programs make deep, unreadable, or full of links to files of others: measured, removed and copied."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from osmosis_grpc.tools import reaper
from osmosis_grpc.tools.sandbox import LocalSandbox, SandboxError, SandboxLimits
from tests.processes import ROOT

MB = 2**20
LONG = "n" * 250
"""Twenty of them are longer than the longest path."""
DEEPER = """
import os, sys
for name in sys.argv[1:]:
    os.mkdir(name)
    os.chdir(name)
"""


BEGIN = """
import os, resource, runpy, subprocess, sys, tempfile
from pathlib import Path

reaper, user, kind, *names = sys.argv[1:]
remove_folders = runpy.run_path(reaper)["remove_folders"]
if "measured" in kind:
    from osmosis_grpc.tools.sandbox import SandboxLimits, folder_size
folder = Path(tempfile.mkdtemp(), "work")
folder.mkdir()
if user == "unprivileged" and os.getuid() == 0:
    for path in (folder, folder.parent):
        os.chown(path, 65534, 65534)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""
"""For root, no folder is unreadable. Other users may be unable to start this Python, but can go on in it."""
REMOVED = """
os.chdir(folder)
for name in names:
    os.mkdir(name); open("file", "w").close(); os.chdir(name)
if kind == "unreadable":
    for name in reversed(names):
        os.chdir(".."); os.chmod(name, 0)
    os.chmod(folder, 0)
os.chdir("/")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
remove_folders(folder)
print(os.path.lexists(folder))
folder.parent.rmdir()
"""
FULL = """
os.chdir(folder)
for name in names:
    os.mkdir(name); os.chdir(name)
if "big" in kind:
    Path("big").write_bytes(os.urandom(2 * 2**20))
os.chdir(folder)
if "un" in kind:
    os.chmod(names[0], 0o600 if "unsearchable" in kind else 0)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
measurement = folder_size.Measurement((folder,), SandboxLimits(folder_bytes=2**20))
print(*(measurement.is_full() for _ in range(3)))
os.chdir("/")
remove_folders(folder)
folder.parent.rmdir()
"""


def in_child(script, user, *arguments):
    """Run a script in a process that is root's, or not. Return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script, reaper.__file__, user, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("user", ["server", "unprivileged"])
@pytest.mark.parametrize("state", ["readable", "unreadable"])
@pytest.mark.parametrize(
    "names", [pytest.param(["d"] * 1500, marks=pytest.mark.slow), [LONG] * 40], ids=["deep", "long"]
)
def test_a_folder_of_any_depth_is_removed_with_few_open_files(names, state, user):
    assert in_child(REMOVED, user, state, *names) == "False"


@pytest.mark.parametrize(
    ("kind", "names", "looks"),
    [
        ("big", [LONG] * 20, "True True True"),
        ("small", [LONG] * 20, "False False False"),
        ("big unreadable", ["d"], "False False True"),
        ("big unsearchable", ["d", "e"], "False False True"),
    ],
    ids=["long path", "little below a long path", "unreadable", "unsearchable"],
)
def test_what_a_program_hides_is_counted(kind, names, looks):
    assert in_child(FULL, "unprivileged", f"{kind}, measured", *names) == looks


async def test_a_program_that_hides_its_files_below_a_long_path_is_killed(method):
    limits = SandboxLimits(folder_bytes=4 * MB)
    async with LocalSandbox(method=method, limits=limits) as box:
        hide = DEEPER + "open('big', 'wb').write(bytes(range(256)) * 32 * 1024)\nimport time\ntime.sleep(600)"
        ended = await box.run([box.python, "-c", hide, *[LONG] * 20], seconds=60)
        assert (ended.exit_code, ended.disk_full, ended.timed_out) == (137, True, False)


async def work_folder(box):
    """The working folder of a sandbox as the server sees it."""
    marker = (await box.run("echo $OSMOSIS_PROCESS_MARKER")).stdout.decode().strip().partition(".")[0]
    return Path(tempfile.gettempdir(), f"osmosis-{marker}", "work")


@pytest.fixture
async def box_with_a_foreign_link(method):
    """A sandbox whose folder has a hard link to a file of another user, which a program can make on some machines."""
    if os.getuid() != 0:
        pytest.skip("only root makes a file of another user")
    async with LocalSandbox(method=method) as box:
        work = await work_folder(box)
        secret = work.parent / "secret"
        secret.write_text("canary")
        os.chown(secret, 4711, 4711)
        secret.chmod(0o600)
        os.link(secret, work / "mine")
        yield box


@pytest.mark.parametrize("way", ["snapshot", "save"])
async def test_a_hard_link_to_a_file_of_another_user_is_not_copied(box_with_a_foreign_link, way, tmp_path):
    box = box_with_a_foreign_link
    with pytest.raises(SandboxError) as refused:
        await (box.snapshot() if way == "snapshot" else box.save(tmp_path / "saved"))
    assert "mine" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_the_reaper_needs_the_standard_library_only():
    done = subprocess.run([sys.executable, "-I", "-S", reaper.__file__], input=b"", capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
