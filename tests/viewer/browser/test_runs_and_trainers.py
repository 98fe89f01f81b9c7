"""Runs beside each other, and a server with its metrics and its attached trainers."""

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest
from playwright.sync_api import expect

from benchmarks.viewed import viewing
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.trainer import Trainer
from tests.processes import run, serving
from tests.viewer.browser.conftest import apart
from tests.viewer.browser.readable import check_readable

pytestmark = pytest.mark.browser

ROWS = 8
AGENT = ("-m", "osmosis_grpc.testing.calculator:agent_loop")


@pytest.fixture(scope="module")
def compared(tmp_path_factory, logs) -> Iterator[str]:
    """A viewer over the run `two`. Its row 0 has a lower reward than in the run `one`, the others a higher one."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [{"user_prompt": f"What is {n} + 0?", "system_prompt": "Add.", "ground_truth": f"{n}"} for n in range(ROWS)]
    (folder / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name, right in (("one", range(1)), ("two", range(1, ROWS))):
        script = {f"{n}": [f"#### {n}" if n in right else "I do not know."] for n in range(ROWS)}
        (folder / f"{name}.json").write_text(json.dumps(script))
        model = ("--model", f"mock:script={name}.json", "--save-dir", f"runs/{name}")
        done = run("-m", "osmosis_grpc", "test", *AGENT, "-d", "data.jsonl", *model, "-q", cwd=folder)
        assert done.returncode == 0, done.stderr
    with viewing("--from", "runs/two", cwd=folder, log=logs / "runs.log") as url:
        yield url


def test_two_runs_are_chosen_and_compared_on_readable_pages(browse, compared):
    page = browse(f"{compared}runs")
    expect(page.locator("input[name=run]:checked")).to_have_count(2)
    check_readable(page)
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/compare?*")
    expect(page.locator("td.worse")).to_have_count(1)
    expect(page.locator("td.better")).to_have_count(ROWS - 1)
    expect(page.locator("td .good")).to_have_text("+0.75")
    check_readable(page)
    page.get_by_role("row", name="1 What is 1 + 0? 1 0 1 1", exact=True).get_by_role("link").click()
    page.wait_for_url("**/compare/row?*")
    expect(page.locator("main")).to_contain_text("I do not know.")
    check_readable(page)
    page.get_by_role("link", name=re.compile("^test-")).click()
    expect(page.locator("main")).to_contain_text("COMPLETED")


@contextmanager
def attached(address: str) -> Iterator[None]:
    """Attach a trainer to a server. It has run one rollout."""
    ready, leave = Event(), Event()

    async def train() -> None:
        async with Trainer([address], EchoPolicy()) as trainer:
            await trainer.rollout(rollout_id="one", messages=[{"role": "user", "content": "What is 1 + 2?"}])
            ready.set()
            await asyncio.to_thread(leave.wait)

    with ThreadPoolExecutor(1) as thread:
        training = thread.submit(apart, train())
        training.add_done_callback(lambda _: ready.set())
        try:
            ready.wait()
            yield
        finally:
            leave.set()
            training.result()


def test_a_server_shows_its_calls_and_the_bytes_of_each_trainer_on_readable_pages(browse, tmp_path, logs):
    options = ("--view", "--view-port", "0", "--metrics-port", "0", "--state-dir", "state")
    with serving(*AGENT, *options, cwd=tmp_path) as (_, ready), attached(ready["grpc"]):
        page = browse(f"http://{ready['view']}/server")
        row = page.get_by_role("region", name="Connected trainers").locator("tbody tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text(re.compile(r"127\.0\.0\.1.*Attach.*[1-9][\d.]* K?B\s*[1-9][\d.]* K?B"))
        check_readable(page)
        follow = ("--from", ready["grpc"], "--metrics", ready["metrics"])
        with viewing(*follow, log=logs / "metrics.log") as url:
            page = browse(f"{url}server")
            expect(page.get_by_role("region", name="Calls that the server answers")).to_contain_text("Attach")
            expect(page.locator("main")).to_contain_text("1 trainer attached")
            check_readable(page)
            page.close()  # its stream must not end with an error
