"""Takes screenshots of the viewer in Chromium, from rollouts of real servers. Needs Chromium and the extra `browser`.

python -m scripts.screenshots               the pictures of README.md and docs/viewer.md, in docs/images
python -m scripts.screenshots --all FOLDER  every page, in light, in dark and at the width of a phone

A picture of docs/images has at most 200 KB.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.viewed import viewing, write_group
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.trainer import Trainer

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 200_000
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
CALCULATOR = "osmosis_grpc.testing.calculator:agent_loop"
PICTURES = {
    "viewer-rollouts": ("", "light", 540),
    "viewer-rollout": ("rollout?id=demo-failing-1", "light", 620),
    "viewer-group": ("group?id=demo-mixed", "light", 480),
    "viewer-batch": ("batch", "dark", 720),
    "viewer-task": ("task?id=demo-mixed-1", "light", 500),
    "viewer-tokens": ("rollout/tokens?id=demo-mixed-1#drift", "light", 640),
}
"""The pictures of the documentation: pages of `view --demo`, their themes, and their heights in pixels."""
LEAST, MOST = 800, 1800
"""The height of a picture of a whole page, in pixels."""
MODES = {"light": ("light", 1280), "dark": ("dark", 1280), "phone": ("light", 390)}
PAGES = {
    "demo": {
        "rollouts": "",
        "findings": "findings",
        "no-rollout": "?q=nothing-has-this-name",
        "rollout": "rollout?id=demo-mixed-2",
        "picture": "rollout?id=demo-equal-1",
        "failed": "rollout?id=demo-failing-1#failed",
        "turn": "turn?id=demo-mixed-1&turn=2",
        "tokens": "rollout/tokens?id=demo-mixed-1#drift",
        "group": "group?id=demo-mixed",
        "task": "task?id=demo-mixed-1",
        "step": "?q=step:9",
        "no-variance": "group?id=demo-equal",
        "batch": "batch",
        "curves": "curves",
        "throughput": "throughput",
        "search": "search?text=Atlantis",
        "folder": "server",
        "problem": "rollout?id=unknown",
    },
    "long": {
        "long-rollout": "rollout?id=long-0#turn=250",
        "long-tokens": "rollout/tokens?id=long-0",
        "long-group": "group?id=long",
    },
    "runs": {"runs": "runs", "compared": "compare", "row": "compare/row"},
    "server": {"server": "server", "server-throughput": "throughput"},
}
"""Every page with its address, by the viewer that has it."""


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a browser."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def shoot(browser: Any, address: str, mode: str, path: Path, height: int = 0) -> None:
    """Write a picture of a page when it has loaded what it shows at first. Without a height, it has all of the page."""
    theme, width = MODES[mode]
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": height or LEAST})
    page = context.new_page()
    page.goto(address)
    page.wait_for_timeout(700)
    if not height:
        whole = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": width, "height": max(LEAST, min(MOST, whole))})
        page.wait_for_timeout(200)
    page.screenshot(path=path)
    context.close()
    print(path, f"{path.stat().st_size // 1000} KB", flush=True)


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Serve the calculator, run rollouts, and yield the address of a viewer that follows the server."""
    options = ("--grpc-port", "0", "--no-http", "--metrics-port", "0", "--state-dir", str(folder), "--json")
    command = [sys.executable, "-m", "osmosis_grpc", "serve", "-m", CALCULATOR, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            asyncio.run(run_rollouts(ready["grpc"]))
            with viewing("--follow", ready["grpc"], "--metrics", ready["metrics"]) as address:
                yield address
        finally:
            process.terminate()


async def run_rollouts(address: str) -> None:
    """Run some rollouts to their ends."""
    messages = [{"role": "user", "content": "What is 1 + 2?"}]
    requests = [RolloutRequest(rollout_id=f"sum-{at}", messages=messages) for at in range(40)]
    async with Trainer([address], EchoPolicy()) as trainer:
        async for _ in trainer.run(requests):
            pass


@contextmanager
def runs(folder: Path) -> Iterator[str]:
    """Run three evaluations with different mock models, and yield the address of a viewer of the last one."""
    rows = [{"user_prompt": f"What is {at} + {at}?", "ground_truth": str(2 * at)} for at in range(8)]
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for model in ("mock:echo", "mock:tools", "mock:tools"):
        words = ("test", "-m", CALCULATOR, "-d", "rows.jsonl", "--model", model, "-q")
        subprocess.run([sys.executable, "-m", "osmosis_grpc", *words], cwd=folder, check=False, capture_output=True)
    with viewing("--run", "last", cwd=folder) as address:
        yield address


def pictures(folder: Path) -> int:
    """Write the pictures of the documentation. Returns 1 if one is too large."""
    with chromium() as browser, viewing("--demo") as address:
        for name, (page, mode, height) in PICTURES.items():
            shoot(browser, address + page, mode, folder / f"{name}.png", height)
    large = [name for name in PICTURES if (folder / f"{name}.png").stat().st_size > MOST_BYTES]
    for name in large:
        print(f"{name}.png has more than {MOST_BYTES // 1000} KB", file=sys.stderr)
    return int(bool(large))


def everything(folder: Path) -> int:
    """Write a picture of every page in every mode."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        asyncio.run(write_group(data / "long", 8, 500, 64))
        addresses = {
            "demo": stack.enter_context(viewing("--demo")),
            "long": stack.enter_context(viewing(str(data / "long"))),
            "runs": stack.enter_context(runs(data / "runs")),
            "server": stack.enter_context(server(data / "server")),
        }
        names = sorted(path.parent.name for path in (data / "runs").glob(".osmosis/runs/*/run.json"))
        chosen = "&".join(f"run={name}" for name in names)
        queries = {"compare": f"?{chosen}", "compare/row": f"?{chosen}&row=3"}
        browser = stack.enter_context(chromium())
        for viewer, pages in PAGES.items():
            for name, page in pages.items():
                for mode in MODES:
                    target = folder / f"{name}-{mode}.png"
                    shoot(browser, addresses[viewer] + page + queries.get(page, ""), mode, target)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="write every page to this folder")
    given = parser.parse_args()
    return pictures(ROOT / "docs" / "images") if given.all is None else everything(given.all)


if __name__ == "__main__":
    sys.exit(main())
