"""Chromium, and viewers that are processes, as a user starts them, over rollouts of real servers."""

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.full_journal import fill
from benchmarks.viewed import viewing, write_group
from benchmarks.viewer import PROGRAMS
from osmosis_grpc.cli.view_demo import write_demo
from tests.policies.model_folder import write_tokenizer
from tests.processes import ROOT, server_process
from tests.viewer.browser.evidence import Watched
from tests.viewer.browser.readable import PATIENCE
from tests.viewer.conftest import TURNS, serving

collect_ignore_glob = [] if find_spec("playwright") else ["test_*.py"]
"""Without the extra `browser`, there are no tests here."""
REBOUND = "rebound.example"
"""A name that the browser resolves to this machine, as after DNS rebinding."""
PROBLEM = pytest.StashKey[str]()
"""The text of a failure of a test."""
TURNS_OF_LONG = 500
MANY = 10_000


def apart(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a thread: this thread has the loop of Playwright."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@pytest.fixture(scope="session")
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as everything:
        yield everything


@pytest.fixture(scope="session")
def chromium(stack):
    """The Chromium of this machine."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program, "there is no Chromium: apt-get install chromium"
    playwright = stack.enter_context(sync_playwright())
    rules = f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"
    browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", rules])
    stack.callback(browser.close)
    return browser


@pytest.fixture
def browse(request, chromium, logs) -> Iterator[Callable[..., Any]]:
    """Opens an address in a new page. `answers` of the page has all its responses.

    At the end, no page has had an error, a dialog or another origin's request. `status` is that of an error which the
    page may have. What happened in the pages of a failed test is in build/browser.
    """
    watched, contexts = Watched(), []

    def go(url: str, *, dark: bool = False, width: int = 1280, status: int = 0) -> Any:
        scheme = "dark" if dark else "light"
        context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        at = urlsplit(url)
        origin = f"{at.scheme}://{at.netloc}"
        if at.netloc:
            context.grant_permissions(["clipboard-read", "clipboard-write"], origin=origin)
        page = context.new_page()
        answers: list[Any] = []
        page.on("response", lambda answer: answers.append(answer))
        watched.watch(page, origin, status)
        page.goto(url)
        page.answers = answers
        return page

    yield go
    problem = request.node.stash.get(PROBLEM, "") or "\n".join(watched.wrong)
    folder = watched.write(request.node.name, problem, logs.glob("*.log")) if problem else None
    for context in contexts:
        context.close()
    assert watched.wrong == [], f"all events are in {folder}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Keep the problem of a failed test for its fixtures."""
    report = yield
    if report.failed:
        item.stash[PROBLEM] = report.longreprtext
    return report


@pytest.fixture(scope="session")
def logs(tmp_path_factory) -> Path:
    """The folder of the logs of the viewers."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Callable[..., Path]:
    """Returns the folder with a name, after a function has written it once for all workers of pytest-xdist."""
    mine = tmp_path_factory.getbasetemp()
    shared = mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine

    def write(name: str, fill: Callable[[Path], Coroutine[Any, Any, None]]) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                apart(fill(folder))
                done.touch()
        return folder

    return write


@pytest.fixture(scope="session")
def viewed(stack, written, logs) -> str:
    """A viewer over a folder: good, bad and hostile rollouts, and `long` with 500 turns."""
    return stack.enter_context(viewing("--from", str(written("viewed", _write_viewed)), log=logs / "viewed.log"))


async def _write_viewed(folder: Path) -> None:
    async with serving(folder, {name: turns for name, turns in TURNS.items() if name != "long"}):
        pass
    async with serving(folder, {"long": TURNS_OF_LONG}, "long"):
        pass


@pytest.fixture(scope="session")
def many(stack, written, logs) -> str:
    """A viewer over a folder with 10,000 rollouts."""
    folder = written("many", lambda folder: fill(folder, MANY, 1, 8))
    return stack.enter_context(viewing("--from", str(folder), log=logs / "many.log"))


@pytest.fixture(scope="session")
def large(stack, written, logs) -> str:
    """A viewer over the group `long` of 8 rollouts with 32 turns; each rollout has 32,768 sampled tokens."""
    folder = written("large", lambda folder: write_group(folder, 8, 32, 1024))
    return stack.enter_context(viewing("--from", str(folder), log=logs / "large.log"))


@pytest.fixture(scope="session")
def demo(stack, written, logs, tmp_path_factory) -> str:
    """A viewer over the rollouts of `view --demo`, with a tokenizer."""
    folder = str(written("demo", write_demo))
    tokenizer = str(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    return stack.enter_context(viewing("--from", folder, "--tokenizer", tokenizer, log=logs / "demo.log"))


@pytest.fixture(scope="session")
def followed(stack, tmp_path_factory, logs) -> tuple[str, str]:
    """A server with an admin token, and a viewer that follows it: the server's address, and the viewer's."""
    folder = tmp_path_factory.mktemp("followed")
    secret = folder / "secret"
    secret.write_text(CANARY)
    agents = ("-m", "osmosis_grpc.testing.calculator:agent_loop", "--state-dir", str(folder / "state"))
    _, address = stack.enter_context(server_process(*agents, "--admin-token-file", str(secret), cwd=ROOT))
    follow = ("--from", address, "--server-token-file", str(secret))
    return address, stack.enter_context(viewing(*follow, log=logs / "followed.log"))


CANARY = "canary-of-the-browser"
"""A secret of the followed server."""
