"""Programs of presets: their HOME, their files, the commands before and after them, and the limits of the rollout."""

import json
import sys
from contextlib import asynccontextmanager

import pytest

from osmosis_grpc.endpoints.app import base_url_app
from osmosis_grpc.endpoints.command_agent import CommandAgent
from osmosis_grpc.endpoints.endpoint_registry import Endpoints
from osmosis_grpc.endpoints.programs import load_program, preset_names
from osmosis_grpc.network.http.server import HttpServer
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import ContextLengthExceeded, InvalidArgument
from osmosis_grpc.protocol.types import FailureReason, OutcomeStatus
from osmosis_grpc.server import AgentServer
from osmosis_grpc.settings.command_line import OPTIONS
from osmosis_grpc.settings.process_environment import program_environment
from osmosis_grpc.trainer import Trainer
from tests.coding_programs.install import versions
from tests.gateway.commands import HELPER, USER, hosted, outcome_of
from tests.processes import ROOT

COMPLETED, FAILED = OutcomeStatus.COMPLETED, OutcomeStatus.FAILED
LOOP = """
history = [{"role": "user", "content": sys.argv[1]}]
for _ in range(20):
    ask(history)
    history.append({"role": "user", "content": "more"})
"""


def policy(request):
    return answer(request, "fine", tokens=5)


@asynccontextmanager
async def preset(folder, program, *, keys="", tables="", environment=(), strict=False):
    """Yields a trainer whose server runs a Python program as the preset of a file describes it."""
    (folder / "agent.py").write_text(HELPER + program)
    command = json.dumps([sys.executable, "-S", str(folder / "agent.py"), "$prompt"])
    (folder / "tool.toml").write_text(f"command = {command}\n{keys}\n{tables}\n")
    endpoints = Endpoints(lambda: f"http://{http.address}")
    variables = program_environment(environment)
    agent = CommandAgent(load_program(str(folder / "tool.toml")), endpoints, environment=variables, folder=folder)
    async with (
        HttpServer(base_url_app(endpoints)) as http,
        AgentServer([agent], port=0) as server,
        Trainer([server.address], policy) as trainer,
    ):
        yield trainer


async def outcome_of_preset(folder, program, *, request=None, **options):
    async with preset(folder, program, **options) as trainer:
        return await trainer.rollout(**{"rollout_id": "r1", "messages": [USER]} | (request or {}))


async def test_the_prompt_variables_and_files_have_the_values_of_the_rollout(tmp_path):
    program = """
home = os.environ["HOME"]
found = {
    "prompt": sys.argv[1],
    "model": os.environ["TOOL_MODEL"],
    "url": json.load(open(home + "/.tool/config.json"))["url"] == os.environ["OPENAI_BASE_URL"],
    "given": open("src/a.txt").read(),
    "stdin": sys.stdin.read(),
}
json.dump({"metadata": found}, open("found.json", "w"))
"""
    copies = "import os, shutil; shutil.copy('found.json', os.environ['OSMOSIS_RESULT_FILE'])"
    tables = """
[environment]
TOOL_MODEL = "$model"
[files]
"$home/.tool/config.json" = '{"url": "$base_url"}'
"""
    request = {"metadata": {"files": {"src/a.txt": "text"}}}
    keys = f'reward = ["{sys.executable}", "-c", "{copies}"]'
    outcome = await outcome_of_preset(tmp_path, program, keys=keys, tables=tables, request=request)
    assert outcome.status is COMPLETED, outcome.failure
    assert outcome.extra_fields == {
        "prompt": USER["content"],
        "model": "policy",
        "url": True,
        "given": "text",
        "stdin": "",
    }


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [
        ({"metadata": {"files": {"../a": "x"}}}, "spec.metadata.files"),
        ({"metadata": {"files": {"/a": "x"}}}, "spec.metadata.files"),
        ({"metadata": {"files": {"a": 5}}}, "spec.metadata.files.a"),
        ({"messages": [USER, {"role": "assistant", "content": "x"}, USER]}, "spec.messages[1].role"),
    ],
)
async def test_a_request_that_cannot_be_a_task_of_a_program_is_refused_with_the_field(tmp_path, request_fields, field):
    with pytest.raises(InvalidArgument) as raised:
        await outcome_of_preset(tmp_path, "result(reward=1)", request=request_fields)
    assert raised.value.violations[0][0] == field


async def test_a_prompt_is_no_option_of_the_program(tmp_path):
    program = 'assert not sys.argv[1].startswith("-"); ask([USER])'
    request = {"messages": [{"role": "user", "content": "--help"}]}
    outcome = await outcome_of_preset(tmp_path, program, keys='reward = ["echo", "1"]', request=request)
    assert outcome.reward == 1.0, outcome.failure


@pytest.mark.parametrize(("keys", "reward"), [('reward = ["echo", "0"]', 0.0), ("", None)])
async def test_what_runs_in_the_folder_of_a_preset_cannot_write_the_reward(tmp_path, keys, reward):
    outcome = await outcome_of_preset(tmp_path, "ask([USER]); result(reward=1)", keys=keys)
    assert (outcome.status, outcome.reward) == (COMPLETED, reward), outcome.failure


@pytest.mark.parametrize("named", [False, True], ids=["by default", "with --command-env HOME"])
async def test_programs_have_a_home_of_their_own(tmp_path, monkeypatch, named):
    monkeypatch.setenv("HOME", str(tmp_path))
    program = 'result(metadata={"home": os.environ["HOME"]})'
    outcome = await outcome_of(tmp_path, program, policy, environment=["HOME"] if named else [])
    assert (outcome.extra_fields["home"] == str(tmp_path)) is named


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ("print('checked'); print(0.5)", 0.5),
        ("import json, os; json.dump({'reward': 2}, open(os.environ['OSMOSIS_RESULT_FILE'], 'w'))", 2.0),
    ],
    ids=["a printed number", "a result file"],
)
async def test_a_command_gives_the_reward_after_the_end_of_the_program(tmp_path, reward, expected):
    keys = f"""
setup = ["{sys.executable}", "-c", "open('before.txt', 'w').write('x')"]
reward = ["{sys.executable}", "-c", "open('after.txt'); {reward}"]
"""
    program = 'assert os.listdir() == ["before.txt"]; open("after.txt", "w"); ask([USER])'
    outcome = await outcome_of_preset(tmp_path, program, keys=keys)
    assert (outcome.status, outcome.reward) == (COMPLETED, expected), outcome.failure


@pytest.mark.parametrize("command", ["false", "true"], ids=["it fails", "it prints nothing"])
async def test_a_reward_command_without_a_reward_is_the_graders_failure(tmp_path, command):
    outcome = await outcome_of_preset(tmp_path, "ask([USER])", keys=f'reward = ["{command}"]')
    assert (outcome.status, outcome.failure.boundary) == (FAILED, "grader")
    assert outcome.failure.reason is FailureReason.GRADER_EXCEPTION


async def test_a_result_counts_although_the_program_ends_with_another_exit_code(tmp_path):
    outcome = await outcome_of(tmp_path, "result(reward=1); sys.exit(3)", policy)
    assert (outcome.status, outcome.reward) == (COMPLETED, 1.0), outcome.failure


@pytest.mark.parametrize(
    ("limit", "reason", "cut", "chats"),
    [
        ({"max_turns": 3}, "max_turns", "max_turns", 3),
        ({"max_turns": 9, "max_tokens_total": 10}, "max_tokens", "max_tokens", 2),
    ],
    ids=["turns", "tokens"],
)
async def test_a_limit_of_the_rollout_ends_the_program_and_the_rollout_completes(tmp_path, limit, reason, cut, chats):
    keys = 'reward = ["echo", "1"]'
    outcome = await outcome_of_preset(tmp_path, LOOP, keys=keys, request=limit)
    assert (outcome.status, outcome.finish_reason, outcome.reward) == (COMPLETED, reason, 1.0), outcome.failure
    sample = outcome.samples["main"]
    assert sample.cut == cut
    assert [segment.chats for segment in sample.segments] == [tuple(range(1, chats + 1))]


async def test_a_program_that_repeats_a_history_without_room_is_ended(tmp_path):
    asked = []

    async def full(request):
        asked.append(request.chat_number)
        raise ContextLengthExceeded(9000, 8000)

    program = """
import urllib.error
while True:
    try:
        ask([USER])
    except urllib.error.HTTPError:
        pass
"""
    async with hosted(tmp_path, program, full) as trainer:
        outcome = await trainer.rollout(rollout_id="r1", messages=[USER])
    assert (outcome.status, outcome.finish_reason, len(asked)) == (COMPLETED, "length", 2), outcome.failure


@pytest.mark.parametrize("name", preset_names())
def test_each_preset_is_complete_and_named_where_users_and_tests_look(name):
    program = load_program(name)
    assert "$prompt" in " ".join(program.command), "command: has no $prompt"
    assert program.install, "install: is missing"
    page = (ROOT / "docs" / "coding-agents.md").read_text()
    assert f"\n| `{name}` | `{program.install.partition(' -')[0]}" in page, "docs/coding-agents.md: has no row"
    assert name in OPTIONS["OSMOSIS_ROLLOUT_SERVER_PROGRAM"].help, "--program: its help does not name it"
    assert name in versions(), "tests/coding_programs/versions.txt: has no line"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("comand = ['a']", "comand"),
        ("command = 'a'", "command"),
        ("", "command"),
        ("command = ['a']\nenvironment = 5", "environment"),
        ("extends = 'unknown'", "unknown"),
        ("command = [", "tool.toml"),
    ],
)
def test_a_wrong_file_is_refused_with_the_key(tmp_path, text, word):
    path = tmp_path / "tool.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=word):
        load_program(str(path))


def test_a_file_can_extend_a_preset(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "codex"\nreward = ["true"]\n[environment]\nA = "b"\n')
    mine, base = load_program(str(path)), load_program("codex")
    assert (mine.name, mine.command, mine.reward) == ("mine", base.command, ("true",))
    assert mine.environment == {**base.environment, "A": "b"}


def test_a_program_that_is_not_installed_is_refused_with_the_command_that_installs_it(tmp_path):
    with pytest.raises(ValueError, match="npm install"):
        CommandAgent(load_program("codex"), Endpoints(str), environment={"PATH": str(tmp_path)})
