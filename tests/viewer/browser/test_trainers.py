"""A server with its metrics and its attached trainers, in Chromium."""

import asyncio
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
from tests.processes import serving
from tests.viewer.browser.conftest import apart
from tests.viewer.browser.readable import check_readable

pytestmark = pytest.mark.browser

AGENT = ("-m", "osmosis_grpc.testing.calculator:agent_loop")


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
        follow = ("--follow", ready["grpc"], "--metrics", ready["metrics"])
        with viewing(*follow, log=logs / "metrics.log") as url:
            page = browse(f"{url}server")
            expect(page.get_by_role("region", name="Calls that the server answers")).to_contain_text("Attach")
            expect(page.locator("main")).to_contain_text("1 trainer attached")
            check_readable(page)
            page.close()  # its stream must not end with an error
