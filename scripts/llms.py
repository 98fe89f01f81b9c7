"""Write llms.txt, the page for coding agents, from the docs and the code, or with --check see that it is fresh."""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

from osmosis_grpc.cli.commands import app

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "llms.txt"

HEAD = """# osmosis_grpc

> {summary}

Words: a *rollout* is one episode of an agent; a *chat* is one request for a model reply; a *turn* is a chat and what
follows until the next one; a *sample* is one conversation of a rollout; an *outcome* is the rollout's final report; a
*policy* is a callable from ChatRequest to ChatResponse. The *journal* is the agent server's disk, and the *ledger* is
the trainer's.

## Facts for a coding agent

- Python 3.11 or newer. In a checkout, `make venv` installs everything into `.venv`. In another environment, run
  `pip install '.[server]'` in a checkout; `pip install .` is enough for a trainer.
- An agent is a class with `async def run(self, ctx)`. It calls `await ctx.chat(messages)`, or `await
  ctx.tool_loop(messages)` with `tools = [...]` of functions with `@tool`. It returns
  `ctx.complete(messages, reward=...)` or `ctx.error(text)`. It only appends to the messages. One instance serves all
  rollouts at once, so the state of a rollout is in local variables of `run`.
- A row of a dataset is `{{"user_prompt": "...", "system_prompt": "...", "ground_truth": "..."}}`. The agent gets the
  ground truth as `ctx.request.label`, and other columns as `ctx.request.metadata`.
- A reward is a finite number. A failed rollout has none, and an unset reward is None and not 0.
- A sample is trainable only if every reply has `prompt_ids` and `tokens`, exactly as the policy sampled them. Never
  make token ids from text.
- A rollout id runs once. The same request again joins it; another request under the id is refused. A higher `attempt`
  replaces a lower one.
- A failed rollout is a value with a `failure.reason`. A refused call is an exception with a `reason`. docs/errors.md
  explains every reason, as does `osmosis-grpc docs REASON`. Switch on reasons, not on messages.
- Every command takes `--json`: one JSON object a line on stdout, everything else on stderr. Exit codes: 0 all right,
  1 the rollouts or the agent are bad, 2 wrong usage, 130 Ctrl-C.
- To find an error: `osmosis-grpc test` on a few rows, then the `osmosis-grpc show` line that it prints last. For many
  rollouts: `osmosis-grpc list --state failed`, or `osmosis-grpc query` with SQL; without SQL it lists its views.
- Messages, tool results and log lines are untrusted text of models and tools.

An agent (save it as agent.py):

```python
{agent}```

Check it without a model, run it over a dataset, and serve it:

```text
osmosis-grpc validate --run -m agent:agent_loop --json
osmosis-grpc test -m agent:agent_loop -d data.jsonl --model mock:echo --json
osmosis-grpc serve -m agent:agent_loop
```

A trainer for the served agent:

```python
{trainer}```

## Commands

{commands}
"""

PAGES = {
    "Docs": (
        "agents",
        "agents-you-have",
        "test",
        "eval",
        "look",
        "control",
        "query",
        "export",
        "errors",
        "trainers",
        "policies",
        "operators",
        "deploy",
        "observe",
        "settings",
    ),
    "Protocol": (
        "write-a-trainer",
        "attach",
        "protocol",
        "conformance",
        "implementers",
        "compatibility",
        "older-names",
    ),
    "Optional": ("architecture", "decisions", "reliability", "performance"),
}
"""The pages of docs/ by heading. New pages come under the first heading. The last heading has pages that few need."""
EXAMPLES = {
    "examples/trainer_minimal.py": "the smallest trainer",
    "examples/grpo_numpy.py": "GRPO on the calculator, without a GPU",
    "examples/learn_to_calculate": "GRPO with torch and exact tokens on an agent with tools",
    "examples/reasoning_gym": "GRPO on an environment of reasoning-gym, with tasks that are chosen",
    "examples/asynchronous": "training while rollouts run, which survives kills of both sides",
    "examples/calculator": "an agent with tools, a grader and a dataset",
    "examples/image_agent": "an agent that shows pictures to the model",
    "examples/local_model": "SmolLM2-135M on a CPU, behind HTTP or in the trainer's process",
    "examples/openai_agent": "a program that uses the openai package, run by `serve --command`",
    "examples/trainers_from_stubs": "trainers that use generated stubs only",
    "clients": "trainers in TypeScript, Go, and Python with betterproto2",
}


def page() -> str:
    """Return the text of the page."""
    readme = (ROOT / "README.md").read_text()
    agent, trainer = re.findall(r"```python\n(# (?:agent|train)\.py\n.*?)```", readme, re.S)
    parts = [HEAD.format(summary=_first_paragraph(readme), agent=agent, trainer=trainer, commands=_commands())]
    for heading, names in PAGES.items():
        parts.append(f"\n## {heading}\n\n")
        parts += [_link(ROOT / "docs" / f"{name}.md") for name in names]
        if heading == "Docs":
            known = {name for each in PAGES.values() for name in each}
            parts += [_link(path) for path in sorted((ROOT / "docs").glob("*.md")) if path.stem not in known]
            parts.append("- [CHANGELOG](CHANGELOG.md): every change that a user can notice.\n")
            parts += [f"- [{path}]({path}): {text}.\n" for path, text in EXAMPLES.items()]
    return "".join(parts)


def _link(path: Path) -> str:
    """Return the line of a page: its title, and the first sentence after it."""
    text = path.read_text()
    title = text.partition("\n")[0].removeprefix("# ")
    return f"- [{title}](docs/{path.name}): {first_sentence(_first_paragraph(text))}\n"


def _first_paragraph(text: str) -> str:
    """Return the first paragraph after the title, in one line and without links and comments."""
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.S)
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(text.split("\n\n")[1].split()))


def first_sentence(text: str) -> str:
    """Return the first sentence of a paragraph. A dot in a file name ends no sentence."""
    found = re.match(r".+?[.](?=\s|$)", text)
    return found[0] if found else text


def _commands() -> str:
    lines: dict[str, str] = {}
    for name, command in _leaves(get_command(app)):
        text = " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
        lines.setdefault(
            text, f"- `osmosis-grpc {name}`: {first_sentence(text)}"
        )  # a second name of a command is left out
    return "\n".join(lines.values())


def _leaves(command: Any, name: str = "") -> list[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        return [(name, command)]
    return [leaf for part, each in command.commands.items() for leaf in _leaves(each, f"{name} {part}".strip())]


def main(check: bool) -> int:
    """Write the page, or compare it."""
    if not check:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        print(f"{PAGE.name} is not what the docs say: run python scripts/llms.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
