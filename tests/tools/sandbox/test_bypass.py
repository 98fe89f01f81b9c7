"""Programs that try to leave a sandbox. None of them reads or changes anything outside, and none is left."""

import functools
import os
import re
import secrets
import subprocess

import pytest

from osmosis_grpc.tools.sandbox import LocalSandbox, Protection, SandboxLimits
from tests.tools.sandbox.canary import TEXT, Canary
from tests.tools.sandbox.left_over import processes_with
from tests.waiting import until

pytestmark = pytest.mark.slow

USER, NETWORK, PROCESSES, FILES = Protection.USER, Protection.NETWORK, Protection.PROCESSES, Protection.FILES
LIMITS, ALWAYS = Protection.LIMITS, None
HIDDEN = (USER, PROCESSES)
"""One of them keeps a program from the processes outside."""
APART = (USER, FILES)
"""One of them keeps a program from changing what only root may change."""

CONNECT = """
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", PORT)), (socket.AF_INET6, ("::1", PORT)),
                        (socket.AF_UNIX, "\\0canary-PORT")):
    try: socket.socket(family).connect(address); print("connected")
    except OSError as error: print(error)
"""
TTY = """
import fcntl, termios
for number in (0, 1, 2, "/dev/tty", "/dev/console"):
    try: fcntl.ioctl(open(number) if isinstance(number, str) else number, termios.TIOCSTI, b"x"); print("typed")
    except OSError as error: print(error)
"""
TRACE = "import ctypes; print(ctypes.CDLL(None).ptrace(16, PID, 0, 0))"
MEMORY = "open('/proc/PID/mem', 'rb').read(1)"

BYPASSES = {
    # Reading secrets.
    "variables": ("env; echo $CANARY_SECRET $OPENAI_API_KEY; cat /proc/self/environ /proc/$PPID/environ", (ALWAYS,)),
    "variables of the server": ("cat /proc/PID/environ /proc/SERVER/environ /proc/*/environ", HIDDEN),
    "command lines": ("cat /proc/*/cmdline | tr '\\0' ' ' | grep canary.py", (PROCESSES,)),
    "descriptors": ("cat /proc/self/fd/[3-9]* /dev/fd/[3-9]* </dev/null", (ALWAYS,)),
    "descriptors of the server": ("cat /proc/SERVER/fd/* </dev/null", HIDDEN),
    "memory of the server": (f'{{python}} -c "{MEMORY}" && echo TEXT', HIDDEN),
    "root of a process": (
        "cat /proc/PID/root/FOLDER/secret /proc/PID/cwd/FOLDER/secret /proc/1/root/FOLDER/secret",
        (FILES,),
    ),
    "home": ("cat HOME/secret; ls -R /root /home; cat ~root/.ssh/* /etc/shadow", APART),
    "absolute path": ("cat FOLDER/secret", (FILES,)),
    "parents": ("cat ../../../../../../../../FOLDER/secret", (FILES,)),
    "symbolic link": ("ln -s FOLDER/secret s; cat s; ln -s / r; cat r/FOLDER/secret", (FILES,)),
    "hard link": ("ln FOLDER/secret h; cat h", (FILES,)),
    "hard link of a private file": ("ln HOME/secret h; cat h; ln /etc/shadow k; cat k", APART),
    "namespaces within": ("unshare -Urm sh -c 'mount --bind FOLDER /mnt; cat /mnt/secret FOLDER/secret'", (FILES,)),
    "root within": ("unshare -Ur cat HOME/secret /etc/shadow; sudo -n cat HOME/secret; su -c 'cat HOME/secret'", APART),
    "devices": ("head -c 1 /dev/mem && echo TEXT; head -c 1 /dev/[sv]da && echo TEXT", APART),
    # Changing what is outside.
    "write": ("echo changed >FOLDER/secret; touch FOLDER/new; mv FOLDER/secret FOLDER/gone", (FILES,)),
    "write into the system": (
        "touch /usr/canary /etc/canary; echo x >>/etc/passwd; echo x >/proc/sys/kernel/hostname",
        APART,
    ),
    "write over a hard link": ("ln HOME/secret h; echo changed >h; ln FOLDER/secret k; echo changed >k", (FILES,)),
    "remove": ("/bin/rm -rf FOLDER", (FILES,)),
    "remove after cd": ("cd / && rm -fr FOLDER", (FILES,)),
    "remove with env": ("env rm -rf FOLDER", (FILES,)),
    "remove in a shell": ("bash -c 'sudo rm -rf FOLDER'; echo 'rm -rf FOLDER' |  sh", (FILES,)),
    "remove in capitals": ("R=RM; ${R,,} -r -f FOLDER", (FILES,)),
    "remove with a coded command": ("echo cm0gLXJmIEZPTERFUgo= | base64 -d | sed s,FOLD''ER,FOLDER, | sh", (FILES,)),
    "remove in Python": ("{python} -c \"import shutil; shutil.rmtree('FOLDER')\"", (FILES,)),
    "remove everything": ("rm -rf --no-preserve-root /", (FILES,)),
    "permissions": ("chmod -R 700 FOLDER; chmod -R 777 HOME; chown -R $(id -u) FOLDER", (FILES,)),
    "cron": ("echo '* * * * * touch FOLDER/cron' | crontab -; echo 'touch FOLDER/at' | at now", APART),
    "services": ("systemd-run --user touch FOLDER/new; systemd-run touch FOLDER/new; busctl list", (FILES,)),
    # Other processes.
    "signals": ("kill -9 PID; kill -STOP PID; kill -9 SERVER; kill -9 -PID; kill -9 -1", HIDDEN),
    "trace": (f'{{python}} -c "{TRACE}"', HIDDEN),
    "typing into a terminal": (f"{{python}} -c '{TTY}' | grep -c typed && echo TEXT", (ALWAYS,)),
    # The network.
    "network": (f"{{python}} -c '{CONNECT}'", (NETWORK,)),
    "network of bash": ("echo x >/dev/tcp/127.0.0.1/PORT; echo x >/dev/udp/127.0.0.1/PORT", (NETWORK,)),
    "network over the machine's address": (
        "for a in $(hostname -I) ADDRESS; do echo x >/dev/tcp/$a/PORT; done",
        (NETWORK,),
    ),
    "unix socket": ("{python} -c \"import socket; socket.socket(1).connect('FOLDER/socket')\"", (FILES,)),
    # Processes that stay, and too many of them.
    "daemon": ("setsid sleep NUMBER >/dev/null 2>&1 </dev/null &", (ALWAYS,)),
    "nohup": ("nohup sleep NUMBER >/dev/null 2>&1 & disown", (ALWAYS,)),
    "daemon of a daemon": ("(env -i setsid sh -c 'trap \"\" TERM HUP; (setsid sleep NUMBER &) & ' &) &", HIDDEN),
    "no marker": ("OSMOSIS_PROCESS_MARKER= setsid sleep NUMBER & unset OSMOSIS_PROCESS_MARKER; sleep NUMBER", HIDDEN),
    "not dumpable": (
        '{python} -c \'import ctypes, os, time; os.setsid(); ctypes.CDLL(None).prctl(4, 0); os.execvp("sleep", '
        '["sleep", "NUMBER"])\' & sleep 0.2',
        (ALWAYS,),
    ),
    "fork bomb": ("f() { f | f & }; f; sleep NUMBER", (LIMITS,)),
    "memory bomb": ("{python} -c 'x = bytearray(10**12)' && echo TEXT", (ALWAYS,)),
    "higher limits": ("ulimit -n 999999 && echo TEXT; ulimit -v unlimited && echo TEXT", HIDDEN),
    "disk": ("yes >big", (ALWAYS,)),
    "many files on the disk": ("i=0; while :; do i=$((i+1)); yes | head -c 9000000 >$i; done", (ALWAYS,)),
    "shared memory": ("cat /dev/shm/canary-*; head -c 200000000 /dev/zero >/dev/shm/canary-x && echo TEXT", (FILES,)),
}
LIMITED = SandboxLimits(file_bytes=50_000_000, folder_bytes=100_000_000, processes=60)


@pytest.fixture(scope="module")
def canary():
    with Canary() as made:
        yield made


def filled(command, canary, number):
    """A command with what it attacks."""
    words = {
        "PID": canary.pid,
        "SERVER": os.getpid(),
        "PORT": canary.port,
        "FOLDER": canary.folder,
        "HOME": canary.home,
        "ADDRESS": "0.0.0.0",
        "TEXT": TEXT,
        "NUMBER": number,
    }
    return re.sub(rf"\b({'|'.join(words)})\b", lambda found: str(words[found[0]]), command)


@pytest.mark.parametrize("name", BYPASSES)
@pytest.mark.row("ARL 40")
async def test_a_bypass_has_no_effect_outside(method, name, canary, monkeypatch):
    command, needed = BYPASSES[name]
    monkeypatch.setenv("OPENAI_API_KEY", TEXT)
    async with LocalSandbox(method=method, limits=LIMITED) as box:
        if ALWAYS not in needed and box.isolation.protections.isdisjoint(needed):
            pytest.skip(f"not in force: {', '.join(needed)}")
        number = 1_000_000 + secrets.randbelow(1_000_000)
        command = filled(command, canary, number)
        before = canary.state()
        with open(canary.folder / "secret") as file:
            os.set_inheritable(file.fileno(), True)
            ended = await box.run(command.replace("{python}", box.python), seconds=1.5)
        assert TEXT.encode() not in ended.stdout + ended.stderr
        assert canary.state() == before
        assert processes_with(str(number)) == []
        await box.run("chmod -R u+rwX . ; rm -rf ./*")
        assert (await box.run("echo works")).stdout == b"works\n"


@pytest.mark.row("ARL 40")
async def test_the_bypasses_reach_the_canary_without_a_sandbox():
    """The programs above do what they say where nothing keeps them from it, so the tests can fail."""
    with Canary() as other:
        for name in ("absolute path", "write", "unix socket", "network of bash"):
            before = other.state()
            command = BYPASSES[name][0].replace("FOLDER", str(other.folder)).replace("PORT", str(other.port))
            done = subprocess.run(
                ["bash", "-c", command.replace("{python}", "python3")], capture_output=True, check=False, cwd=other.home
            )
            await until(functools.partial(_reached, other, before, done.stdout))


def _reached(canary, before, output):
    """Whether a program has read a secret or changed something outside."""
    return TEXT.encode() in output or canary.state() != before
