"""scripts/lint.py finds what the project forbids."""

import pytest

from scripts import lint

RULES = {rule.problems.__name__: rule for rule in lint.RULES}
SEVEN = ", ".join(f"p{n}: int" for n in range(7))
FIELDS = "\n".join(f"    p{n}: int" for n in range(7))
FORBIDDEN = {
    "unsupervised": {
        "asyncio.create_task(work())": "create_task",
        "loop = get(); loop.create_task(work())": "create_task",
        "asyncio.ensure_future(work())": "ensure_future",
        "callback = loop.create_task": "create_task",
        "from asyncio import create_task": "create_task",
        "asyncio.TaskGroup()": "TaskGroup",
        "anyio.create_task_group()": "create_task_group",
        "threading.Thread(target=work).start()": "Thread",
        "from threading import Thread\nThread(target=work)": "Thread",
        "class Mine(threading.Thread): pass": "Thread",
        "threading.Timer(1, work)": "Timer",
        "self._loop.call_later(1, work)": "call_later",
        "asyncio.get_running_loop().call_at(1, work)": "call_at",
        "call_later(1, work)": "call_later",
    },
    "unrepeatable": {
        "now = time.time()": "time.time",
        "clock = time.monotonic": "time.monotonic",
        "from time import monotonic": "time.monotonic",
        "datetime.now(UTC)": "datetime.now",
        "datetime.datetime.utcnow()": "datetime.utcnow",
        "import random": "random",
        "from uuid import uuid4": "uuid.uuid4",
        "os.urandom(16)": "os.urandom",
        "await asyncio.to_thread(read)": "asyncio.to_thread",
        "loop.run_in_executor(None, read)": "run_in_executor",
        "now = SYSTEM.time()": "SYSTEM",
    },
    "large": {
        f"class Big:\n    def __init__(self, {SEVEN}, more: str = ''): ...": "Big",
        f"class Big:\n    def __init__(self, {SEVEN}, *, more): ...": "Big",
        f"@dataclass\nclass Big:\n{FIELDS}\n    more: str": "Big",
    },
    "private": {
        "trainer._pool": "_pool",
        "trainer._pool = None": "_pool",
        "monkeypatch.setattr(server, '_tick', 1)": "_tick",
        "monkeypatch.setattr('osmosis_grpc.network.tls._TICK', 1)": "osmosis_grpc.network.tls._TICK",
        "getattr(server, '_tick')": "_tick",
        "from osmosis_grpc.network import _stream": "_stream",
    },
    "sleeps": {"await asyncio.sleep(0.1)": "sleep", "time.sleep(pause)": "sleep"},
    "evals": {"page.wait_for_function('ready')": "wait_for_function"},
}
ALLOWED = {
    "unsupervised": [
        "self._supervisor.call_later(JOB, 1, work)",
        "engine.supervisor.start(JOB, work)",
        "from osmosis_grpc.supervise import call_later\ncall_later(JOB, 1, work)",
        "thread: threading.Thread | None = None",
        "await asyncio.to_thread(work)",
        "loop.call_soon(work)",
    ],
    "unrepeatable": [
        "supervisor.system.monotonic()",
        "loop.time()",
        "time.sleep(1); time.strftime('%H', moment)",
        "def make(system: System = SYSTEM, *, clock=SYSTEM.monotonic): pass",
    ],
    "large": [
        f"class Big:\n    def __init__(self, {SEVEN}, config: EngineConfig | None = None): ...",
        f"@dataclass(slots=True)\nclass Big:\n{FIELDS}\n    state: int = 0",
        f"@dataclass(frozen=True)\nclass Big:\n{FIELDS}\n    more: str",
    ],
    "private": [
        "self._pool",
        "super()._pool",
        "os._exit(1)",
        "server.__dict__",
        "from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2",
    ],
    "sleeps": ["await asyncio.sleep(0)", "await asyncio.sleep(3600)", "await asyncio.sleep(0.1)  # two heartbeats"],
}


@pytest.mark.parametrize(
    ("rule", "source", "name"), [(rule, *case) for rule, cases in FORBIDDEN.items() for case in cases.items()]
)
def test_a_problem_is_found(rule, source, name):
    assert [found for _, found in lint.problems(RULES[rule], source)] == [name]


@pytest.mark.parametrize(("rule", "source"), [(rule, source) for rule, listed in ALLOWED.items() for source in listed])
def test_what_is_allowed_is_not_found(rule, source):
    assert lint.problems(RULES[rule], source) == []
