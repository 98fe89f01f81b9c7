"""Five questions of a first look are answered by clicks; pages of runs, batches, images and live tokens in Chromium."""

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from osmosis_grpc.cli.view_demo import DRIFTING
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.trainer import Trainer
from tests.viewer.browser.conftest import CANARY, PATIENCE
from tests.viewer.browser.readable import wait_until

pytestmark = pytest.mark.browser


def section(page, words):
    return page.locator(".findings .card", has_text=words)


def test_which_rollouts_failed_and_why(browse, demo):
    page = browse(demo)
    page.get_by_role("link", name="Findings").first.click()
    failed = section(page, "failed")
    expect(failed).to_contain_text("AGENT_EXCEPTION")
    failed.get_by_role("link", name="demo-failing-1").click()
    raised = page.locator("details.turn.failing .call.error")
    expect(raised).to_contain_text("KeyError: 'Atlantis'")
    expect(raised).to_be_in_viewport()


def test_where_the_tokens_drifted(browse, demo):
    page = browse(f"{demo}findings")
    drifted = section(page, "drifted")
    expect(drifted).to_contain_text(DRIFTING)
    drifted.get_by_role("link", name=re.compile("turn 2, index")).click()
    expect(page.locator("#chosen-token")).to_contain_text("the first token that differs")
    expect(page.locator(".token.drift")).to_be_in_viewport()


def test_an_image_of_a_prompt_is_shown(browse, demo):
    page = browse(f"{demo}rollout?id=demo-equal-1#turn=1")
    image = page.locator("img.image").first
    expect(image).to_be_visible()
    wait_until(page, "document.querySelector('img.image').naturalWidth === 96")


def test_the_tokens_of_a_running_rollout_grow_by_themselves(browse, followed):
    address, url = followed
    begun, opened = threading.Event(), threading.Event()

    async def policy(request):
        if request.chat_number == 2:
            begun.set()
            await asyncio.to_thread(opened.wait, PATIENCE / 1000)
        call = {"id": f"c{request.chat_number}", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        reply = {"role": "assistant", "content": "", "tool_calls": [call]}
        return answer(request, reply if request.chat_number < 4 else "Done.", tokens=16)

    async def run_it():
        async with Trainer([address], policy, credentials=Credentials(token=CANARY)) as trainer:
            question = [{"role": "user", "content": "What is 1 + 2?"}]
            await trainer.rollout(rollout_id="growing", messages=question, max_turns=20)

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(asyncio.run, run_it())
        assert begun.wait(PATIENCE / 1000)
        page = browse(f"{url}rollout/tokens?id=growing")
        sampled = page.locator("#head .facts span", has_text="sampled")
        expect(sampled).to_have_text("16 sampled")
        cells = page.locator("#tokens [role=gridcell]").count()
        opened.set()
        expect(sampled).to_have_text("64 sampled")
        wait_until(page, f"document.querySelectorAll('#tokens [role=gridcell]').length > {cells}")
        running.result()


def test_a_prompt_leads_to_all_attempts_at_its_task(browse, demo):
    page = browse(demo)
    page.locator('[data-id^="demo-mixed-1 "] .prompt a').click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("8 attempts")
    page.locator(".squares a").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("demo-mixed-1")


def test_a_point_of_a_curve_leads_to_the_rollouts_of_a_step_of_the_trainer(browse, demo):
    page = browse(f"{demo}curves")
    page.locator("#curves .u-over").first.click(position={"x": 2, "y": 40})
    page.wait_for_url("**/?q=step*7")
    expect(page.locator(".rollouts tbody tr")).to_have_count(4)


@pytest.mark.parametrize("width", [1280, 390])
def test_no_fact_of_a_rollout_wraps(browse, demo, width):
    page = browse(f"{demo}rollout?id=demo-mixed-2", width=width)
    heights = page.evaluate("[...document.querySelectorAll('.table-of-facts dd')].map((it) => it.clientHeight)")
    assert len(heights) >= 10
    assert max(heights) < 2 * min(heights)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    "path",
    [
        "",
        "findings",
        "batch",
        "curves",
        "task?id=demo-mixed-1",
        "turn?id=demo-equal-1&turn=3",
        "rollout?id=demo-equal-1#turn=1",
    ],
)
def test_a_page_has_no_serious_finding_of_axe_and_fits_a_phone(browse, demo, path, dark):
    page = browse(demo + path, dark=dark, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    found = Axe().run(page).response["violations"]
    serious = {
        (one["id"], node["html"][:200])
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    }
    assert serious == set()
