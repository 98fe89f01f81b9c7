"""A program is an agent: it is started for each rollout, asks at the base URL, and writes a result file."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from osmosis_grpc.endpoints.command_agent import CommandAgent
from osmosis_grpc.endpoints.endpoint_registry import Endpoints
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatRef, OutcomeStatus
from osmosis_grpc.server import ServerConfig
from osmosis_grpc.settings.process_environment import program_environment
from tests.gateway.commands import COMMAND, USER, hosted, outcome_of, write
from tests.tools.test_process import marked
from tests.waiting import until

COMPLETED, FAILED = OutcomeStatus.COMPLETED, OutcomeStatus.FAILED
SECRETS = {"OPENAI_API_KEY": "canary-1", "ANTHROPIC_API_KEY": "canary-2", "AWS_SECRET_ACCESS_KEY": "canary-3"}


def policy(request):
    """Answers with the system prompt. The planner's first reply calls a helper."""
    first = request.messages[0]["content"]
    if first == "plan" and request.chat_number == 1:
        call = {"id": "c1", "type": "function", "function": {"name": "help", "arguments": "{}"}}
        return answer(request, {"role": "assistant", "content": None, "tool_calls": [call]})
    return answer(request, f"{first} {request.chat_number}")


async def failure_of(folder, program, **options):
    outcome = await outcome_of(folder, program, policy, **options)
    assert (outcome.status, outcome.reward) == (FAILED, None)
    return outcome.failure


async def test_two_conversations_and_a_subagent_are_three_samples_with_the_right_parents(tmp_path):
    outcome = await outcome_of(
        tmp_path,
        """
planner = [{"role": "system", "content": "plan"}, USER]
ask(planner)
helper = [{"role": "system", "content": "help"}, USER]
ask(helper)
helper.append({"role": "user", "content": "more"})
planner.append({"role": "tool", "tool_call_id": "c1", "content": ask(helper)["content"]})
ask(planner)
ask([{"role": "system", "content": "criticize"}, USER])
result(rewards={"main": 1, "sample-3": 0.25}, metadata={"words": ["a", "b"]}, finish_reason="done")
""",
        policy,
    )
    assert outcome.status is COMPLETED, outcome.failure
    assert {name: sample.parent for name, sample in outcome.samples.items()} == {
        "main": None,
        "sample-2": ChatRef("main", 1),
        "sample-3": None,
    }
    assert {name: sample.reward for name, sample in outcome.samples.items()} == {
        "main": 1.0,
        "sample-2": None,
        "sample-3": 0.25,
    }
    assert [len(sample.messages) for sample in outcome.samples.values()] == [5, 5, 3]
    assert (outcome.reward, outcome.extra_fields, outcome.finish_reason) == (None, {"words": ["a", "b"]}, "done")


async def test_a_sub_agent_that_begins_late_is_found_by_its_prompt_and_a_compacted_history_by_its_summary(tmp_path):
    prompt, summary = "Look into the folder, and say what is there.", "The folder has hello.txt, and no test runs yet."

    def writes(request):
        said = request.messages[-1]["content"]
        if said == "plan":
            function = {"name": "help", "arguments": json.dumps({"prompt": prompt})}
            call = {"id": "c1", "type": "function", "function": function}
            return answer(request, {"role": "assistant", "content": None, "tool_calls": [call]})
        return answer(request, summary if said == "Summarize." else "fine")

    program = f"""
planner = [{{"role": "user", "content": "plan"}}]
ask(planner)
planner.append({{"role": "tool", "tool_call_id": "c1", "content": "it has begun"}})
ask(planner)
ask([{{"role": "user", "content": "You are a helper. {prompt}"}}])
planner.append({{"role": "user", "content": "Summarize."}})
ask(planner)
ask([{{"role": "user", "content": "Go on. {summary}"}}])
"""
    outcome = await outcome_of(tmp_path, program, writes)
    assert outcome.status is COMPLETED, outcome.failure
    parents = {name: sample.parent for name, sample in outcome.samples.items()}
    assert parents == {"main": None, "sample-2": ChatRef("main", 1), "sample-3": ChatRef("main", 3)}


@pytest.mark.parametrize("said", ["Make a title for my page.", "Write a title."])
async def test_a_task_without_tools_that_speaks_of_titles_is_trained_on(tmp_path, said):
    program = f'ask([{{"role": "system", "content": "Generate a title."}}, {{"role": "user", "content": "{said}"}}])'
    outcome = await outcome_of(tmp_path, program, policy)
    assert [sample.train for sample in outcome.samples.values()] == [None], outcome.failure


async def test_the_task_is_on_stdin_and_in_a_file_and_the_folder_is_empty(tmp_path):
    outcome = await outcome_of(
        tmp_path,
        """
text = sys.stdin.read()
assert text == open(os.environ["OSMOSIS_TASK_FILE"]).read()
assert os.listdir() == []
assert os.path.abspath("x").startswith(os.path.dirname(os.environ["OSMOSIS_TASK_FILE"]))
result(metadata=json.loads(text))
""",
        policy,
        request={"rollout_id": "r 1?#%é", "label": "5", "metadata": {"a": [1]}, "max_turns": 3},
    )
    assert outcome.status is COMPLETED, outcome.failure
    assert outcome.reward is None
    assert outcome.extra_fields == {
        "rollout_id": "r 1?#%é",
        "attempt": 1,
        "messages": [USER],
        "label": "5",
        "metadata": {"a": [1]},
        "max_turns": 3,
        "completion_params": {},
    }


async def test_an_id_with_any_characters_has_a_base_url(tmp_path):
    request = {"rollout_id": "a b?c#d%2Fé&"}
    outcome = await outcome_of(tmp_path, "ask([USER]); result(reward=1)", policy, request=request)
    assert (outcome.status, outcome.reward) == (COMPLETED, 1.0), outcome.failure


async def test_no_key_of_the_server_is_in_the_environment_of_a_program(tmp_path, monkeypatch):
    for name, value in (SECRETS | {"HF_HOME": "/models"}).items():
        monkeypatch.setenv(name, value)
    program = "result(metadata=dict(os.environ))"
    outcome = await outcome_of(tmp_path, program, policy, environment=["HF_HOME"])
    found = outcome.extra_fields
    assert not [value for value in found.values() if "canary" in value]
    assert "AWS_SECRET_ACCESS_KEY" not in found
    assert found["HF_HOME"] == "/models"
    assert found["OPENAI_BASE_URL"] == found["ANTHROPIC_BASE_URL"]
    assert found["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path)
    assert found["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"


def other_python(folder):
    """Makes a folder with another program of the name python, and returns the folder."""
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "node"):
        (folder / "bin" / name).write_text("#!/bin/sh\necho another\nexit 3\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


@pytest.mark.parametrize("activated", ["", "VIRTUAL_ENV", "CONDA_PREFIX"])
async def test_python_is_the_servers_unless_an_environment_is_activated(tmp_path, monkeypatch, activated):
    """The tests run in a virtual environment."""
    other = other_python(tmp_path / "other")
    monkeypatch.setenv("PATH", f"{other}/bin:/usr/bin:/bin")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    if activated:
        monkeypatch.setenv(activated, str(other))
    program = "import shutil; result(metadata={'python': sys.executable, 'found': shutil.which('python')})"
    outcome = await outcome_of(tmp_path, program, policy, command="python agent.py")
    if activated:
        assert "ended with exit code 3: another" in outcome.failure.message
    else:
        assert set(outcome.extra_fields.values()) == {sys.executable}
    assert shutil.which("node", path=program_environment(())["PATH"]) == f"{other}/bin/node"


async def test_a_file_name_that_is_no_utf8_is_a_text_with_a_replacement(tmp_path):
    program = r"""
messages = [{"role": "user", "content": "\udcff.txt"}]
ask(messages)
messages.append({"role": "user", "content": "and \ud83d"})
ask(messages)
result(reward=True, metadata={"file": "\udcff.txt"})
"""
    outcome = await outcome_of(tmp_path, program, policy)
    assert (outcome.failure, outcome.reward, list(outcome.samples)) == (None, 1.0, ["main"])
    said = [message["content"] for message in outcome.messages if message["role"] == "user"]
    assert said == ["\ufffd.txt", "and \ufffd"]
    assert outcome.extra_fields == {"file": "\ufffd.txt"}


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print('a', flush=True); print('b', file=sys.stderr); sys.exit(7)", "ended with exit code 7: b\na\nb"),
        ("raise ValueError('wrong')", "ended with exit code 1: ValueError: wrong\nTraceback"),
        ("os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("os.killpg(0, 9)", "was ended by SIGKILL"),
        ("print(os.environ['OPENAI_API_KEY']); sys.exit(1)", "exit code 1: [key]\n[key]"),
    ],
)
async def test_an_exit_code_is_a_failure_of_the_agent_with_the_last_lines(tmp_path, program, message):
    failure = await failure_of(tmp_path, program)
    assert (failure.boundary, failure.reason, failure.retryable) == ("agent", "AGENT_EXCEPTION", False)
    assert message in failure.message


@pytest.mark.slow
async def test_a_program_that_is_stopped_by_its_time_limit_has_its_samples(tmp_path):
    program = "import time; ask([USER]); print('waits', flush=True); time.sleep(600)"
    outcome = await outcome_of(tmp_path, program, policy, seconds=3.0)
    assert outcome.status is FAILED
    assert outcome.failure.message == "the program was stopped after its time limit of 3 s: waits\nwaits"
    assert [message["role"] for message in outcome.samples["main"].messages] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", None),
        ('{"reward": null, "metadata": null}', None),
        ("[1]", "the result file: is not a JSON object"),
        ("{", "the result file: is not JSON"),
        ("\xff", "is not JSON"),
        ('{"reward": "1"}', "reward: is '1', not a finite number"),
        ('{"reward": NaN}', "NaN"),
        ('{"rewards": [1]}', "rewards: is a list, not an object"),
        ('{"rewards": {"main": "x"}}', "rewards.main: is 'x', not a finite number"),
        ('{"rewards": {"other": 1}}', "rewards.other: the rollout has no sample named 'other'; its samples: 'main'"),
        ('{"train": {"main": 1}}', "train.main: is a int, not a bool"),
        ('{"train": {"other": true}}', "train.other: the rollout has no sample named 'other'; its samples: 'main'"),
        ("", "the result file is empty"),
        ('{"metadata": 3}', "metadata: is a int, not an object"),
        ('{"finish_reason": 3}', "finish_reason: is a int, not a string"),
        (
            '{"rewrd": 1}',
            "rewrd: is not a key of a result; the keys are reward, rewards, train, metadata, finish_reason",
        ),
        ("x" * (4 * 2**20 + 1), "result.json has more than 4194304 bytes"),
    ],
)
async def test_a_bad_result_file_is_a_failure_that_names_the_field(tmp_path, text, message):
    (tmp_path / "given").write_bytes(text.encode("latin-1"))
    program = f"""
import shutil
ask([USER])
shutil.copy({str(tmp_path / "given")!r}, os.environ["OSMOSIS_RESULT_FILE"])
"""
    outcome = await outcome_of(tmp_path, program, policy)
    if message is None:
        assert (outcome.status, outcome.reward) == (COMPLETED, None), outcome.failure
    else:
        assert (outcome.status, outcome.failure.reason) == (FAILED, "AGENT_RESULT_INVALID")
        assert message in outcome.failure.message
        assert "main" in outcome.samples


async def test_a_program_that_dies_while_it_writes_its_result_fails_with_its_own_error(tmp_path):
    outcome = await outcome_of(tmp_path, "ask([USER])\nresult(reward={}['x'])", policy)
    assert (outcome.status, outcome.failure.reason) == (FAILED, "AGENT_EXCEPTION")
    opened = "ask([USER])\nwith open(os.environ['OSMOSIS_RESULT_FILE'], 'w') as file:\n    json.dump({}['x'], file)"
    outcome = await outcome_of(tmp_path, opened, policy)
    assert (outcome.status, outcome.failure.reason) == (FAILED, "AGENT_EXCEPTION")
    assert "KeyError: 'x'" in outcome.failure.message


async def test_a_failed_chat_that_ends_the_program_is_the_trainers_failure(tmp_path):
    def refuses(request):
        raise InvalidArgument("messages", "are too long")

    outcome = await outcome_of(tmp_path, "ask([USER])", refuses)
    assert (outcome.status, outcome.failure.boundary) == (FAILED, "trainer")
    assert "are too long" in outcome.failure.message
    caught = "try:\n    ask([USER])\nexcept Exception as error:\n    result(reward=0, metadata={'why': str(error)})"
    outcome = await outcome_of(tmp_path, caught, refuses)
    assert (outcome.status, outcome.reward) == (COMPLETED, 0.0)


async def test_a_failure_after_a_failed_chat_has_the_output_of_the_program(tmp_path):
    def refuses_once(request):
        if request.messages[-1]["content"] == "bad":
            raise InvalidArgument("messages", "are too long")
        return policy(request)

    program = """
try:
    ask([{"role": "user", "content": "bad"}])
except Exception:
    pass
"""
    failure = (await outcome_of(tmp_path, program + "raise KeyError('my own bug')", refuses_once)).failure
    assert (failure.boundary, failure.retryable) == ("trainer", False)
    assert "are too long; then the program ended with exit code 1: KeyError: 'my own bug'\nTraceback" in failure.message
    failure = (await outcome_of(tmp_path, program + "ask([USER]); raise KeyError('my own bug')", refuses_once)).failure
    assert (failure.boundary, failure.reason) == ("agent", "AGENT_EXCEPTION")


async def test_the_key_is_not_in_the_result(tmp_path):
    program = 'key = os.environ["OPENAI_API_KEY"]; result(metadata={key: [f"<{key}>"]}, finish_reason=key)'
    outcome = await outcome_of(tmp_path, program, policy)
    assert (outcome.extra_fields, outcome.finish_reason) == ({"[key]": ["<[key]>"]}, "[key]")


@pytest.mark.parametrize(
    "command",
    [
        f"{sys.executable} -S -c 'from helper import *; result(reward=1)  # {'x' * 5000}'",
        f"{sys.executable} -S agent.py {'x' * 5000}",
        "sh -c helper.py",
    ],
)
async def test_a_script_on_the_command_line_is_not_a_file(tmp_path, command):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/helper.py").write_text("#!/bin/sh\nprintf '{\"reward\": 1}' >$OSMOSIS_RESULT_FILE\n")
    (tmp_path / "bin/helper.py").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join((str(tmp_path / "bin"), os.environ["PATH"])))
        outcome = await outcome_of(tmp_path, "result(reward=1)", policy, command=command)
    assert (outcome.status, outcome.reward) == (COMPLETED, 1.0), outcome.failure


async def test_a_module_of_the_servers_folder_runs_beside_its_folder(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__main__.py").write_text("from helper import *; result(reward=len(open(sys.argv[1]).read()))")
    (tmp_path / "data").write_text("abc")
    outcome = await outcome_of(tmp_path, "", policy, command=f"{sys.executable} -m package data")
    assert (outcome.status, outcome.reward) == (COMPLETED, 3.0), outcome.failure


async def test_a_cancel_ends_a_program_with_its_partial_samples(tmp_path):
    program = """
import subprocess, time, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ask([USER])
subprocess.Popen(["sleep", "600"], start_new_session=True)
say("asked")
time.sleep(600)
"""
    async with hosted(tmp_path, program, policy) as trainer:
        rollout = asyncio.create_task(trainer.rollout(rollout_id="r1", messages=[USER]))
        await until((tmp_path / "asked").exists)
        folder = Path((tmp_path / "asked").read_text()).parent
        marker = folder.name.removeprefix("osmosis-")
        assert len(marked(marker)) == 2
        await trainer.cancel("r1")
        outcome = await asyncio.wait_for(rollout, 10)
    assert outcome.status is OutcomeStatus.CANCELLED
    assert [len(segment.ids) > 0 for segment in outcome.samples["main"].segments] == [True]
    assert marked(marker) == []
    assert not folder.exists()


@pytest.mark.slow
async def test_fifty_programs_at_once_each_have_their_own_rollout(tmp_path):
    config = ServerConfig(max_concurrent=50)
    program = "task = json.load(sys.stdin); ask(task['messages']); result(reward=float(task['label']))"
    async with hosted(tmp_path, program, policy, config=config) as trainer:
        outcomes = await asyncio.gather(
            *(trainer.rollout(rollout_id=f"r{n}", messages=[USER], label=str(n)) for n in range(50))
        )
    assert [outcome.reward for outcome in outcomes] == list(map(float, range(50)))


async def test_the_output_of_a_program_is_in_its_events_and_bounded(tmp_path):
    seen = []
    async with hosted(
        tmp_path, "print('x' * 99 + '\\n' * 2, end='') or [print(n) for n in range(10**5)]", policy
    ) as trainer:
        outcome = await trainer.rollout(rollout_id="r1", messages=[USER])
        async for event in trainer.events("r1"):
            seen.append(event.kind)
    assert outcome.status is COMPLETED
    (logged,) = [kind for kind in seen if getattr(kind, "name", "") == "program ended"]
    assert logged.data["exit_code"] == 0
    assert logged.data["output"].splitlines() == [str(n) for n in range(10**5 - 40, 10**5)]


async def test_a_folder_that_cannot_be_made_is_a_failure_of_the_server(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    async with hosted(tmp_path, "", policy) as trainer:
        failure = (await trainer.rollout(rollout_id="r1", messages=[USER])).failure
    assert (failure.boundary, failure.retryable, failure.reason) == ("server", True, "SERVER_ERROR")
    assert failure.message.startswith("the folder of the program cannot be made: ")


async def test_a_program_that_was_deleted_later_is_a_failure(tmp_path):
    path = tmp_path / "tool"
    path.write_text('#!/bin/sh\nrm "$0"\n')
    path.chmod(0o755)
    async with hosted(tmp_path, "", policy, command="./tool") as trainer:
        first = await trainer.rollout(rollout_id="r1", messages=[USER])
        second = await trainer.rollout(rollout_id="r2", messages=[USER])
    assert first.status is COMPLETED
    assert second.failure.message == f"the program {path} cannot be started: No such file or directory"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("", "the command is empty"),
        ("there-is-no-such-program x", "there is no program 'there-is-no-such-program'"),
        ("./missing", "there is no program './missing'"),
        ("./helper.py", "'./helper.py' is not executable"),
        ("/tmp", "'/tmp' is not executable"),
        ("sh 'x", "closing quotation"),
        ("python nothere.py x", "there is no file 'nothere.py' in "),
        ("cat x | sh", "no shell runs the command, so '|' has no effect; write: sh -c '...'"),
    ],
)
def test_a_command_that_cannot_be_started_is_refused_at_once(tmp_path, command, problem):
    write(tmp_path, "")
    with pytest.raises(ValueError, match=problem.replace(".", r"\.")) as caught:
        CommandAgent(command, Endpoints(str), environment={"PATH": os.environ["PATH"]}, folder=tmp_path)
    assert str(caught.value)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (COMMAND, "agent"),
        ("sh -c true", "sh"),
        (f"{sys.executable} -m package.tool --x 1", "package.tool"),
        (f"{sys.executable} -m package helper.py", "package"),
        ("./run -c helper.py", "helper"),
        ("./run.sh --config helper.py", "helper"),
    ],
)
def test_the_name_of_an_agent_is_that_of_its_script(tmp_path, command, name):
    write(tmp_path, "")
    for script in ("run", "run.sh"):
        (tmp_path / script).write_text("#!/bin/sh\n")
        (tmp_path / script).chmod(0o755)
    agent = CommandAgent(command, Endpoints(str), environment={"PATH": os.environ["PATH"]}, folder=tmp_path)
    assert agent.name == name


CONVERSATIONS = """
ask([{"role": "system", "content": "%s"}, USER], model="small")
work = [{"role": "system", "content": "plan"}, USER]
tools = [{"type": "function", "function": {"name": "help", "parameters": {"type": "object"}}}]
ask(work, model="large", tools=tools)
work.append({"role": "tool", "tool_call_id": "c1", "content": "5"})
ask(work, model="large", tools=tools)
ask([{"role": "system", "content": "Help."}, USER], model="large")
ask([{"role": "system", "content": "criticize"}, USER], model="policy/critic")
"""


@pytest.mark.parametrize(
    ("first", "result", "train"),
    [
        ("Count words.", "", {"main": False, "sample-2": None, "sample-3": None, "sample-4": None}),
        ("Count words.", 'result(train={"main": True, "sample-3": False})', {"main": True, "sample-3": False}),
        ("Make a title.", "", {"title": False, "main": None, "sample-3": None, "sample-4": None}),
    ],
    ids=["another model", "another model, and the result says otherwise", "a side call"],
)
async def test_conversations_that_are_not_about_the_task_are_not_trained_on(tmp_path, first, result, train):
    policies = {"": policy, "critic": policy}
    outcome = await outcome_of(tmp_path, CONVERSATIONS % first + result, policies)
    assert outcome.status is COMPLETED, outcome.failure
    work = next(name for name, sample in outcome.samples.items() if sample.messages[0]["content"] == "plan")
    assert outcome.messages == outcome.samples["main" if "True" in result else work].messages
    assert train.items() <= {name: sample.train for name, sample in outcome.samples.items()}.items()
