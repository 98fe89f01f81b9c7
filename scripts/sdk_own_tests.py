"""Runs the Osmosis SDK's own tests of rollouts with the import prefix changed, and nothing else.

    python scripts/sdk_own_tests.py [--write] [REPOSITORY]

The sources are fetched with git; REPOSITORY is a clone in place of the public one. Nothing of them is kept. Prints the
figures of each file. A test that uses a name that is not here is skipped, see sdk_shims.py; every other test passes or
has a reason in WHY, or else the exit code is 1. `--write` writes the table of docs/compatibility.md. If the sources
cannot be fetched, all is skipped.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- begin own tests: python scripts/sdk_own_tests.py --write -->\n", "<!-- end own tests -->\n"
PUBLIC = "https://github.com/Osmosis-AI/osmosis-sdk-python"
COMMITS = {"0.2.14": "v0.2.14", "0.2.18": "v0.2.18", "0.3.x": "5009e1912f7b855c16c2fef180050b4428365b5d"}
"""What is fetched. Tags end with 0.3.0. The commit is the newest public one, and has most of 0.3.8."""
FOLDERS = {"0.2.14": "tests", "0.2.18": "tests/unit/rollout", "0.3.x": "tests/unit/rollout"}
_SANITIZED = "it is for the SDK's own writer of samples: here a sample that is not JSON is refused, not sanitized"
_DEBUG = "a private parameter; here `create_app(debug_dir=)` and `--log DIR` write these files"
_MOCKED = "it mocks the HTTP client inside; here the model asks the rollout's session"
_GET_SAMPLE = "`RolloutContext.get_sample()` is for the SDK's backends; a grader has `ctx.sample`"
WHY = {
    "test_chat_completions_success": "three token ids with two logprobs: tokens that do not fit together are left out",
    "test_chat_completions_ignores_unknown_kwargs": "here unknown sampling parameters are forwarded",
    "test_rollout_context_debug_enabled_when_dir_set": _DEBUG,
    "test_rollout_context_log_event_writes_to_file": _DEBUG,
    "test_rollout_context_get_debug_file_path": _DEBUG,
    "test_set_sample_source_and_get_sample": _GET_SAMPLE,
    "test_get_sample_without_source_returns_none": _GET_SAMPLE,
    "test_memory_session_registers_sample_source": _GET_SAMPLE,
    "test_set_sample_source_raises_on_second_registration": "it freezes wording",
    "test_memory_session_raises_when_used_in_rollout_context_after_creation": "it freezes wording",
    "test_metadata_defaults_none": "metadata is `{}` if there is none, so `ctx.metadata.get(...)` works",
    "test_set_reward_rejects_non_finite": "a ValueError, too, but not that of pydantic",
    "test_trajectory_snapshot_still_defaults": _SANITIZED,
    "test_trajectory_messages_default_to_an_independent_native_copy": _SANITIZED,
    "test_trajectory_snapshot_failure_preserves_native_messages": _SANITIZED,
    "TestJsonSafeCopy": _SANITIZED,
    "test_agent_swaps_placeholder_model_inside_rollout_context": "the model's name is that of the policy",
    "test_rollout_model_requires_session_sample_id": "a model without a session works: the recorded messages are taken",
    "test_get_response_aggregates_streaming_response": _MOCKED,
    "test_upstream_runner_run_records_session_sample": _MOCKED,
    "TestOsmosisStrandsAgentPromptConversion": "it looks at arguments of a mocked Strands",
    "test_scrubbable_files_are_redacted_in_place": "a part of the SDK's own use of Harbor",
    "test_package_exports": "names of a workflow of one's own in Harbor are not here",
    "test_driver_exports_controller_contract_only": "the modules of a trainer have sentences only",
}
"""Why tests fail, by the name of the test or of its class."""
_SEP = "::"
_UNKNOWN = "nobody said why"


def fetched(repository: str, folder: Path) -> dict[str, Path]:
    """Fetch the commits. Return their folders by version; nothing if the repository cannot be reached."""
    git = ["git", "-C", str(folder)]
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    found = {}
    subprocess.run(["git", "init", "--quiet", "--bare", str(folder)], check=True)
    for version, commit in COMMITS.items():
        fetch = [*git, "fetch", "--quiet", "--depth=1", repository, commit]
        if subprocess.run(fetch, env=environment, timeout=300).returncode:
            print(f"skipped: {repository} cannot be fetched")
            return {}
        archive = subprocess.run([*git, "archive", "FETCH_HEAD", "tests"], check=True, capture_output=True).stdout
        place = folder / version
        place.mkdir()
        subprocess.run(["tar", "x", "-C", str(place)], input=archive, check=True)
        found[version] = place
    return found


def run(version: str, place: Path) -> list[tuple[str, str, str]]:
    """Run the tests of a version. Return the file, the outcome and the reason of each."""
    for path in place.rglob("*.py"):  # tests patch modules by their names in texts, which migrate leaves
        path.write_text(re.sub(r"\bosmosis_ai\b", "osmosis_grpc", path.read_text()))
    files = [str(path) for path in sorted((place / FOLDERS[version]).rglob("test_*.py")) if "rollout" in str(path)]
    report = place / "report.json"
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "sdk_shims", "-o", "asyncio_mode=auto"]
    options += [
        "--timeout",
        "60",
        "--tb=no",
        "--continue-on-collection-errors",
        "-o",
        "addopts=",
        "--rootdir",
        str(place),
    ]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files], check=False, cwd=place, stdout=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(place), "PYTHONPATH": str(ROOT / "scripts"), "SDK_REPORT": str(report)},
    )  # fmt: skip
    outcomes = []
    for node, outcome, reason in json.loads(report.read_text()):
        file, _, test = node.partition(_SEP)
        count = 1 if test else _tests_in(place / file)  # a file that is skipped as a whole
        outcomes += [(Path(file).name, outcome, reason or test)] * count
    return outcomes


def _tests_in(path: Path) -> int:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse(path.read_text()))
    return sum(isinstance(each, kinds) and each.name.startswith("test_") for each in nodes)


def reason_of(test: str) -> str | None:
    """Return why a test fails; None if nobody said why."""
    return next((WHY[part] for part in test.partition("[")[0].split(_SEP) if part in WHY), None)


def rows(version: str, outcomes: list[tuple[str, str, str]]) -> tuple[list[str], int]:
    """Return the rows of a version's table, and the number of failures without a reason."""
    lines, unknown = [], 0
    for file in sorted({file for file, _, _ in outcomes}):
        here = [(outcome, reason) for each, outcome, reason in outcomes if each == file]
        passed = sum(outcome == "passed" for outcome, _ in here)
        uses = Counter(reason for outcome, reason in here if outcome == "skipped")
        texts = [f"{why if ' ' in why else f'`{why}`'} ({count})" for why, count in sorted(uses.items())]
        failed: dict[str, list[str]] = {}
        for test in sorted({reason.partition("[")[0] for outcome, reason in here if outcome == "failed"}):
            tests = failed.setdefault(reason_of(test) or _UNKNOWN, [])
            tests += {f"`{test.rpartition(_SEP)[2]}`"} - set(tests)
        unknown += len(failed.get(_UNKNOWN, []))
        texts += [f"{', '.join(tests)}: {why}" for why, tests in failed.items()]
        lines.append(f"| {version} | `{file}` | {passed} of {len(here)} | {'; '.join(texts) or 'all'} |")
    return lines, unknown


def main() -> int:
    """Run the tests of all versions. Returns the exit code."""
    arguments = [each for each in sys.argv[1:] if each != "--write"]
    table, unknown = ["| version | file | passed | uses what is not here, and other reasons |", "|---|---|---|---|"], 0
    with tempfile.TemporaryDirectory() as folder:
        found = fetched(arguments[0] if arguments else PUBLIC, Path(folder))
        for version, place in found.items():
            outcomes = run(version, place)
            lines, without = rows(version, outcomes)
            unknown += without
            counts = Counter(outcome for _, outcome, _ in outcomes)
            figures = f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} use what is not here"
            print("\n".join([*lines, f"{version}: {len(outcomes)} tests: {figures}"]))
            table += [*lines, f"| **{version}** | **all** | **{counts['passed']} of {len(outcomes)}** | {figures} |"]
    if not found:
        return 0
    before, rest = PAGE.read_text().split(BEGIN)
    text = "\n".join(table) + "\n"
    if "--write" in sys.argv:
        PAGE.write_text(before + BEGIN + text + END + rest.split(END)[1])
    elif rest.split(END)[0] != text:
        print("docs/compatibility.md has other figures, of an environment with the extras of `dev` and Strands")
    return int(unknown > 0)


if __name__ == "__main__":
    sys.exit(main())
