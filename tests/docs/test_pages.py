"""Every block of a page runs, in order, in an empty folder."""

import json
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, Reader, blocks_of
from tests.processes import ROOT

CHECKOUT = "make"
"""A block that begins with this word needs a checkout, not an empty folder."""
ADAPTERS = re.compile(r"\b(rollout_agent|solver|MCPServer|mcp_tools|shopper)\b")
"""A block of docs/agents-you-have.md with one of these words needs the libraries of agents."""
LACKING = "from openai import" if find_spec("openai") is None else "\0"
"""A block with this text cannot run here."""


SHOWN = {"docs/look.md": 2, "docs/query.md": 4, "docs/control.md": 4, "docs/fork.md": 1, "docs/eval.md": 2}
"""How many texts a page shows that its commands print."""
EVAL_PAGES = [PAGES["docs/eval.md"], PAGES["docs/test.md"]]


def steady(text):
    """A text without what differs in each run."""
    text = re.sub(r"\d+-\d+-\d+ \d+:\d+:\d+Z", "DATE", text)
    text = re.sub(r"version [0-9a-f]+", "version V", text)
    text = re.sub(r"\d+\.\d+ (m?s)\b( \(\d+ %\))?", r"T \1", text)
    text = re.sub(r"\d+ (tokens|prompt tokens|response tokens)", r"N \1", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "SERVER", text)
    return " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.timeout(180)
async def test_the_blocks_of_a_page_run_and_print_what_it_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    blocks = [block for block in blocks_of(PAGES[name]) if not block.text.startswith(CHECKOUT)]
    blocks = [block for block in blocks if not ADAPTERS.search(block.text) and LACKING not in block.text]
    if not blocks:
        pytest.skip("each block needs the libraries of agents")
    with Reader(tmp_path) as reader:
        for block in blocks:
            await reader.run(block)
    if name in SHOWN:
        shown = re.findall(r"```text\n(.*?)```", PAGES[name].read_text(), re.S)
        shown = [steady(text) for text in shown if not text.startswith("eval: ")]
        assert len(shown) == SHOWN[name]
        assert [text for text in shown if not any(text in steady(printed) for printed in reader.output)] == []
    if name == "docs/eval.md":
        assert "0 annotations added, 12 known already" in reader.output[-1]
        records = [json.loads(line) for line in (tmp_path / "first" / "results.jsonl").read_text().splitlines()]
        assert records[0].keys() <= set(re.findall(r"`(\w+)`", "".join(map(Path.read_text, EVAL_PAGES))))


@pytest.mark.adapters
@pytest.mark.timeout(180)
async def test_the_blocks_that_need_the_libraries_of_agents_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in blocks_of(PAGES["docs/agents-you-have.md"]) if ADAPTERS.search(block.text)]
    assert len(blocks) == 5
    with Reader(tmp_path) as reader:
        for block in blocks:
            await reader.run(block)
    assert all("0 errors, 0 warnings" in text for text in reader.output if "agent" in text)


@pytest.mark.adapters
@pytest.mark.timeout(400)
async def test_the_blocks_of_the_page_about_strands_run(tmp_path, monkeypatch):
    pytest.importorskip("strands")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with Reader(tmp_path) as reader:
        for block in blocks_of(ROOT / "docs" / "strands.md"):
            await reader.run(block, timeout=150)
    printed = "".join(reader.output)
    assert "COMPLETED 1.0 ['user', 'assistant', 'tool', 'assistant'] 1\n" in printed
    assert "1 agent, 0 errors, 0 warnings\n" in printed
    assert "result (" in printed
    assert "1 of 1 row COMPLETED, mean reward 1," in printed


@pytest.mark.slow
async def test_the_program_whose_policy_raises_ends_with_the_traceback_of_the_page(tmp_path):
    page = PAGES["docs/long-training.md"]
    server, *_ = blocks = blocks_of(page)
    (program,) = [block for block in blocks if block.text.startswith("# failing_policy.py")]
    assert len(program.text.splitlines()) <= 30
    with Reader(tmp_path) as reader:
        await reader.run(server)
        await reader.run(program)
    *steps, trace = reader.output[-1].partition("Traceback (most recent call last):\n")
    assert steps[0].count("step 1 ") == 8
    last = trace.rpartition("Traceback (most recent call last):\n")[2].replace(f"{tmp_path}/", "")
    (shown,) = re.findall(r"```text\nTraceback \(most recent call last\):\n(.*?)```", page.read_text(), re.S)
    first, policy = shown.split("  ...\n")
    assert last.startswith(first)
    assert last.endswith(policy)


def test_an_agent_with_three_tools_has_less_than_30_lines():
    (block,) = [block for block in blocks_of(PAGES["docs/agents.md"]) if block.text.startswith("# weather.py")]
    assert block.text.count("@tool\n") == 3
    assert len([line for line in block.text.splitlines() if line.strip() and not line.startswith("#")]) < 30


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_first_command_of_the_readme_runs_in_a_fresh_clone_again_and_again(tmp_path):
    (first,) = [block for block in blocks_of(PAGES["README.md"]) if block.text.startswith(CHECKOUT)]
    command = first.text.strip()
    subprocess.run(["git", "clone", "-q", str(ROOT), "clone"], cwd=tmp_path, check=True)
    with Reader(tmp_path / "clone") as reader:
        done = subprocess.run(
            ["bash", "-e", "-c", f"{command} && {command} && .venv/bin/python -c 'import osmosis_grpc.viewer.app'"],
            cwd=tmp_path / "clone",
            timeout=500,
            env=reader.environment | {"HOME": "/nonexistent"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\bCOMPLETED +\d", done.stdout)) == 16


def test_the_agent_and_the_trainer_of_the_readme_have_15_lines_each():
    programs = [block.text for block in blocks_of(PAGES["README.md"]) if block.language == "python"]
    assert [text.partition("\n")[0] for text in programs] == ["# agent.py", "# train.py"]
    assert all(len([line for line in text.splitlines()[1:] if line.strip()]) <= 15 for text in programs)


def test_the_readme_has_one_picture_that_moves():
    (path,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGES["README.md"].read_text())
    picture = ROOT / path
    assert picture.stat().st_size <= 600_000
    assert b"ANIM" in picture.read_bytes()[:64]


def test_the_readme_says_first_what_it_is_for():
    text = PAGES["README.md"].read_text()
    assert "reinforcement-learning" in text[:200]
    assert text.index("```bash\nmake demo") < 500
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    assert {"venv", "demo", "test", "check", "generate", "compat-newest"} <= set(targets)


@pytest.mark.parametrize(
    "path", [*PAGES.values(), ROOT / "CONTRIBUTING.md", ROOT / "llms.txt", *sorted((ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(path: Path):
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", path.read_text()):
        page = path.parent / target if target else path
        assert page.exists(), target
        if anchor:
            assert anchor in [_anchor(line) for line in page.read_text().splitlines()], anchor


def _anchor(line: str) -> str:
    """Returns the anchor of a heading; empty for any other line."""
    if not line.startswith("#"):
        return ""
    return re.sub(r"[^a-z0-9_ -]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
