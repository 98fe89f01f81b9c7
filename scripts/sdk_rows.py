"""Writes the tables of behaviours and their tests into docs/compatibility.md; with --check, only checks them.

A test belongs to a row if it has the marker `row` with the row's name: "SDK 7", "SDK S2" or "ARL 7".
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- rows: python scripts/sdk_rows.py -->\n", "<!-- end of rows -->\n"

ROWS = {
    1: "all names of the root package, or a sentence that says what to use",
    2: "`integrations.agents.strands` has the same objects",
    3: "the core imports without strands; its names name the extra",
    4: "a workflow without `run` cannot be made",
    5: "`AgentWorkflow[MyConfig]` and bare `AgentWorkflow`",
    6: "made as `cls(config)`; `self.config is ctx.config`",
    7: "a `run` that is not async is refused before serving",
    8: "a new workflow object for each rollout",
    9: "a new copy of the configuration for each rollout, with its model and tools",
    10: "configurations: `name` is required, more fields are kept, assignments are checked, any types",
    11: "`ctx.config` is None without an instance",
    12: "`ctx.config or module_config`",
    13: "the result of `run` is ignored",
    14: "`ctx.prompt` has the row's messages, not its answer",
    15: "`messages=ctx.prompt`, with text and with blocks",
    16: "no empty system message",
    17: "**more**: all keys of a message survive, or are refused by name",
    18: "**more**: values from TOML, variables, the command line and the request",
    19: "**more**: an unknown table or key is refused by name",
    20: "**more**: the class in the brackets is made of TOML values",
    21: "exactly one workflow is found and used",
    22: "none and several are refused with their names",
    23: "an alias counts once; an imported class counts",
    24: "five errors for wrong paths",
    25: "relative imports; equal module names do not collide; a reload sees new code",
    26: "two configurations are refused by name",
    27: "one grader; two are refused; without one, a request with a grader's limit is refused",
    28: "another grader, as `module:Class`",
    29: "all problems at once, with eight codes",
    30: "`get_rollout_context()` within `run`, None outside",
    31: "100 rollouts at once with equal agent names stay apart",
    32: "**other**: leaving a context restores the outer one",
    33: "tools and threads see the context; their agents are samples",
    34: "variables fill blanks; a running rollout has its own base URL and key",
    35: "**more**: no key in a repr, an event or the log",
    36: "an agent without a context raises RuntimeError",
    37: "the placeholder model raises NotImplementedError at the call",
    38: "the placeholder is a LiteLLMModel; `params` are optional",
    39: "`for_sample` gives a LiteLLMModel with both headers in its configuration",
    40: "**more**: a `model_id` is refused when the model is made",
    41: "a sample has the agent's name, its `agent_id`, or a random name",
    42: "**more**: odd names work, or are refused clearly",
    43: "**other**: a second agent of a name is refused",
    44: "**more**: an agent that could not be made is no sample",
    45: "other models pass through and are not registered",
    46: "the other parameters reach Strands, also by position",
    47: "a chat has rollout, sample, messages, tools and parameters; no HTTP request is made",
    48: "a tool call, its result and the next chat",
    49: "a tool that raises is an error result",
    50: "`invoke_async()` without a prompt uses the history",
    51: "the sync form works in an async `run`",
    52: "both system messages are sent, the parameter's first",
    53: "samples have native messages",
    54: "**more**: the whole history, whatever the conversation manager trims",
    55: "**more**: a truncated reply keeps the partial sample",
    56: "the fields of a sample and their defaults",
    57: "a grader gets the samples and the label",
    58: "`set_sample_reward`; an unknown sample is a ValueError",
    59: "**other**: only finite numbers are rewards; a bool is refused",
    60: "**other**: a sample without a reward is a failure that names it",
    61: "**other**: a workflow without a sample fails",
    62: "a grader runs with a label or metadata, after a workflow that succeeded",
    63: "a failed grader keeps the samples and sends no reward",
    64: "**more**: a grader has a context whose chats are for judging",
    65: "five exception classes and their categories",
    66: "**other**: separate time limits that hold",
    67: "`max_concurrent`; without it the server's limit of 100 holds",
    68: "**other**: an overload is refused with a delay",
    69: "**other**: exactly one end for each accepted rollout",
    70: "**other**: an equal request finds the rollout; another one is refused; records are kept for an hour",
    71: "**more**: cancel one rollout, a group, a prefix, or all",
    72: "**more**: queued, running, grader, and the end",
    73: "**more**: a trainer that is away comes back within a grace period, or the rollout ends",
    74: "errors of the model are retried, or end the rollout with their text",
    75: "**more**: every method needs the token",
    76: "**more**: a server drains, and has an identity",
    77: "**more**: both contexts have the metadata",
    78: "evaluation over a dataset",
    79: "export as ATIF",
    80: "`POST /rollout` of 0.2.18 with its two callbacks",
}
GAPS = {
    1: "a reward for each sample",
    2: "contexts with a mock model, and `TestClient(create_app(...))`, in unit tests",
    3: "`ctx.tools` are schema objects",
    4: "an exception of the executor passes through `execute_tool_calls`",
    5: "`usage` with floats or null",
    6: "all public names of 0.2.14",
    7: "`result.token_ids` behaves as a list",
    8: "pydantic habits of the author's classes",
    9: "the texts that a model reads",
    10: "the options of `create_app`, `serve_agent_loop` and the command line",
    11: "the same request after a restart",
    12: "lenient types in a request",
    13: "the old debug log",
    14: "names that later versions of the SDK have",
    15: "`POST /rollout` of 0.3.x with its polling lease",
}
AGENTIC = {
    1: "`AgenticRolloutConfig`: each field has an effect; a wrong one is refused by name; dict, JSON, YAML, metadata",
    2: "the package imports and runs in an environment with its declared libraries only",
    3: "the agent types react, tool and coding run from a configuration; an unknown one is refused with the known ones",
    4: "the options of an agent type reach it; an unread one is refused",
    5: "`tools_config` builds working tools with their options",
    6: "a rollout as one call and as a stream of steps; a cancel and a time limit stop the model and the tool",
    7: "batches: a limit that holds, results in the order of the prompts, failures that stay alone",
    8: "a hundred rollouts at once share nothing",
    9: "LLM functions: sync and async; text, dict and object",
    10: "the OpenAI-compatible function: parameters, tools, logprobs, usage; a streamed reply is the same reply",
    11: "the Anthropic function",
    12: "retries by status, within the deadline, as many as configured",
    13: "a model that fails ends the rollout as `llm_error`",
    14: "environment variables, and which value wins",
    15: "`BaseAgent` with its eleven methods; the page's custom agent",
    16: "the registry of agent types, with those of installed packages",
    17: "the ReAct prompt describes each tool; the stored messages are those sent",
    18: "the ReAct parser: a table of replies; what is written is read back",
    19: "exactly one stop reason for each end",
    20: "an error of a tool is a result with a type, and the agent goes on",
    21: "native tool calls: several in a reply, with a limit",
    22: "the coding agent fixes failing repositories in a sandbox",
    23: "the five step types",
    24: "all fields of a step survive JSON, and arrive over gRPC",
    25: "trajectories survive JSON; dicts of the library load",
    26: "the final response",
    27: "tool calls, and malformed ones apart",
    28: "rewards of steps and of the rollout",
    29: "exact token counts, or none; tokens, masks and logprobs of the outcome",
    30: "statistics",
    31: "saved trajectories: appended whole, by many at once, also through a kill",
    32: "the formats json, jsonl, messages and txt",
    33: "trajectories over gRPC: pages, filters, export, statistics, replay",
    34: "the life of a tool with state",
    35: "the registry of tools",
    36: "schemas and checks of arguments",
    37: "tools without types and sync tools",
    38: "the calculator",
    39: "bash",
    40: "what a sandbox keeps programs from",
    41: "the file editor's five commands",
    42: "the file editor stays in its folder",
    43: "search",
    44: "the finish tool",
    45: "outputs for verl's agent loop",
    46: "verl's padded batch",
    47: "verl's V1 records",
    48: "tokens, masks and logprobs over several turns",
    49: "verl drives our server; tools of verl run in our agents, and ours in verl",
    50: "the Kubernetes sandbox, and a coding rollout with its patch",
}
AGENTIC_HEAD = """\
## Agentic Rollout Library

[agentic.md](agentic.md) describes the names of the Agentic Rollout Library. A program changes its import lines. The
table has each behaviour, its number, and a test.
"""
TABLES = (("", ROWS, "SDK "), ("S", GAPS, "SDK S"), ("ARL ", AGENTIC, "ARL "))
"""The mark of a row in the page, the rows, and the beginning of its name in a marker."""
ELSEWHERE = {"SDK 78", "SDK 79", "SDK S14"}
"""Rows that other features test."""
NONE = "-"
"""What the table shows for a row without a test."""


def tests_of() -> dict[str, list[str]]:
    """Return the tests of each row as FILE::NAME, by the row's name."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "mark.row(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            for mark in getattr(node, "decorator_list", ()):
                if ast.unparse(mark).startswith("pytest.mark.row("):
                    for row in mark.args:
                        found.setdefault(row.value, []).append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def missing() -> list[str]:
    """Return the rows that lack a test."""
    found = tests_of()
    rows = {f"{part}{number}" for _, numbered, part in TABLES for number in numbered}
    return sorted(rows - found.keys() - ELSEWHERE)


def table(*chosen: tuple[str, dict[int, str], str]) -> str:
    """Return a table as Markdown."""
    found = tests_of()
    lines = ["| row | behaviour | test |", "|---|---|---|"]
    for mark, rows, part in chosen:
        for number, text in rows.items():
            tests = found.get(f"{part}{number}", [])
            shown = f"`{tests[0].split('::')[1]}`" if tests else NONE
            lines.append(f"| {mark}{number} | {text} | {shown} |")
    return "\n".join(lines) + "\n"


def tables() -> str:
    """Return the table of the Osmosis SDK, and that of the Agentic Rollout Library."""
    return f"{table(*TABLES[:2])}\n{AGENTIC_HEAD}\n{table(TABLES[2])}"


def problems() -> list[str]:
    """Return what is wrong with the table in the page, and the rows that lack a test."""
    found, page = tests_of(), PAGE.read_text()
    shown = dict(re.findall(r"^\| ((?:S|ARL )?\d+) \| .* \| (\S+) \|$", page.split(BEGIN)[1].split(END)[0], re.M))
    wrong = [f"{row} has no test" for row in missing()]
    for mark, rows, part in TABLES:
        for number in rows:
            names = {test.split("::")[1] for test in found.get(f"{part}{number}", [])} or {NONE}
            if shown.get(f"{mark}{number}", "").strip("`") not in names:
                wrong.append(f"row {mark}{number} of {PAGE.name} is old: run python scripts/sdk_rows.py")
    return wrong


def main() -> int:
    """Write the table, or check it. Returns the exit code."""
    if "--check" not in sys.argv:
        page = PAGE.read_text()
        PAGE.write_text(f"{page.split(BEGIN)[0]}{BEGIN}\n{tables()}\n{END}{page.split(END)[1]}")
    found = problems()
    for problem in found:
        print(problem, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
