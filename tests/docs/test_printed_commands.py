"""Every command that the product or a page prints is one, and those that a daily loop prints do what they say.

The blocks of pages run in tests/docs/test_pages.py. Commands in sentences, and in sessions with a model, are parsed.
"""

import os
import re
import signal
from pathlib import Path

import pytest

from osmosis_grpc.cli.screen import program
from tests.docs.pages import PAGES, blocks_of
from tests.docs.printed import of_output, of_page, of_source, problem_of, words_of
from tests.processes import ROOT
from tests.waiting import wait_until

TEXTS = [ROOT / "README.md", ROOT / "llms.txt", *sorted((ROOT / "docs").glob("*.md")), *ROOT.glob("examples/**/*.md")]
SOURCES = [*sorted((ROOT / "osmosis_grpc").rglob("*.py")), *sorted((ROOT / "gateway").rglob("*.py"))]
NOT_COMMANDS = {"COMMAND": "stands for any command", "that": "a sentence about the package"}
"""The words after the program's name that are no commands, and why."""
ELSEWHERE = {
    "comparison.md": "make compare needs the environments of the other systems",
    "conformance.md": "tests/conformance/test_command.py",
    "index.md": "the block of the README",
    "pytorch.md": "tests/docs/test_pytorch_page.py",
    "runbooks.md": "tests/docs/test_runbooks_page.py",
    "strands.md": "tests/docs/test_pages.py, with the libraries of agents",
    "trl.md": "tests/trainers/test_trl_page.py",
    "vllm.md": "tests/docs/test_vllm_page.py",
}
"""The pages with shell blocks that are not in PAGES, and what runs them or why nothing can."""
AGENT = """
from osmosis_grpc.agent import RolloutAgentLoop, tool

@tool
async def look(city: str) -> str:
    '''Look at a city.'''
    return "line\\n" * 20

class Uneven(RolloutAgentLoop):
    name = "uneven"
    tools = (look,)
    replayable = True

    async def run(self, ctx):
        messages = await ctx.tool_loop(ctx.request.messages, **ctx.request.completion_params)
        if ctx.request.label == "20":
            raise ValueError("no good")
        reward = None if ctx.request.label == "15" else 0.25 + ctx.request.rollout_id.endswith(".1")
        return ctx.complete(messages, reward=reward)

uneven = Uneven()
"""
SCORES = "def exact(solution_str, ground_truth):\n    return float(ground_truth in solution_str)\n"
DATASET = ("-m", "uneven:uneven", "-d", "data.jsonl")
LISTENS = re.compile(r"127\.0\.0\.1:\d+.*\n\Z", re.S)
"""What a server prints when it is ready."""
LOOP = [
    ("validate", "--run", "-m", "uneven:uneven"),
    ("test", *DATASET, "--model", "mock:tools"),
    ("test", *DATASET, "--model", "mock:tools", "--max-turns", "1"),
    ("eval", *DATASET, "--model", "mock:tools", "--n", "2"),
    ("eval", *DATASET, "--model", "mock:echo", "--n", "2", "--eval-fn", "scores:exact", "--save-dir", "my run"),
    ("fork", "1.0", "--at-chat", "1", "-m", "uneven:uneven", "--model", "mock:tools", "--from", "last"),
    ("demo", "--state-dir", "kept"),
    ("backup", "copied", "--state-dir", "kept"),
    ("query",),
]
"""The commands of a user. What they print is pasted, and what that prints, too."""


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_page_have_existing_names_and_options(path):
    problems = {}
    for command in of_page(path.read_text()):
        words = words_of(command)
        if words[0] not in NOT_COMMANDS and len(words) > 1:  # a single word names the command
            problems[command] = problem_of(words)
    assert {command: problem for command, problem in problems.items() if problem} == {}


def test_the_commands_in_messages_have_existing_names_and_options():
    found = {command: path.name for path in SOURCES for command in of_source(path.read_text())}
    assert len(found) > 20
    known = {command: words_of(command) for command in found}
    problems = {
        f"{found[command]}: {command}": problem_of(words)
        for command, words in known.items()
        if words[0] not in NOT_COMMANDS and len(words) > 1
    }
    assert {command: problem for command, problem in problems.items() if problem} == {}


def test_every_page_with_shell_blocks_is_run_or_says_why_not():
    having = {path.name for path in (ROOT / "docs").glob("*.md") if any(b.language == "bash" for b in blocks_of(path))}
    new = having - {Path(name).name for name in PAGES} - ELSEWHERE.keys()
    assert not new, "add these pages to PAGES in tests/docs/pages.py, or say in ELSEWHERE what runs their blocks"


def without_settings():
    """The variables of a user who has set nothing of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OSMOSIS_", "OPENAI_"))}


class Shell:
    """A user who pastes each printed command, once for each shape: another run or another port is the same shape."""

    def __init__(self, forked, folder: Path) -> None:
        self._forked = forked
        self.folder = folder
        self.shapes: set[str] = set()

    def paste(self, words: list[str]) -> None:
        """Run a command, and paste what it prints. A server runs until that is done."""
        words = ["osmosis_grpc.testing.calculator:agent_loop" if word == "MODULE:ATTR" else word for word in words]
        shape = re.sub(r"\b(\d+\.\d|\d+|[0-9a-f]{7}|[\w-]+-fork-\w+)(?=\s|$|:)", "N", " ".join(words))
        if shape in self.shapes:
            return
        self.shapes.add(shape)
        if words[0] in ("serve", "view"):
            self._serve(words)
            return
        done = self._forked.run("-m", "osmosis_grpc", *words, cwd=self.folder, env=without_settings())
        assert done.returncode in (0, 1), (words, done.stderr)
        if words[0] != "docs":  # a page's commands run in its own test
            self.paste_all(done.stdout + done.stderr)

    def paste_all(self, text: str) -> None:
        """Paste the commands at the ends of printed lines."""
        for command in of_output(text):
            self.paste(words_of(command))

    def _serve(self, words: list[str]) -> None:
        more = ("--port", "0") if words[0] == "view" else ("--grpc-port", "0", "--no-http")
        out, err = (self.folder / f"server-{len(self.shapes)}.{end}" for end in ("out", "err"))
        command = ("-m", "osmosis_grpc", *words, *more)
        with self._forked.start(*command, cwd=self.folder, out=out, err=err, env=without_settings()) as process:
            wait_until(lambda: process.has_ended() or (out.exists() and LISTENS.search(out.read_text())))
            assert not process.has_ended(), (words, err.read_text())
            self.paste_all(out.read_text())
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_commands_that_a_daily_loop_prints_can_be_pasted(forked, tmp_path):
    shell = Shell(forked, tmp_path / "project")
    first = forked.run("-m", "osmosis_grpc", "init", "project", cwd=tmp_path, env=without_settings())
    assert first.returncode == 0, first.stderr
    (shell.folder / "uneven.py").write_text(AGENT)
    (shell.folder / "scores.py").write_text(SCORES)
    shell.paste_all(first.stdout)
    for words in LOOP:
        shell.paste(list(words))
    ran = {shape.split()[0] for shape in shell.shapes}
    assert ran >= {"validate", "test", "eval", "compare", "serve", "ping", "show", "view", "export", "docs"}
    assert program() in first.stdout
