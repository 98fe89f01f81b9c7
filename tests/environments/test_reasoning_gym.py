"""Data sets of reasoning-gym through a server, beside reasoning-gym's own scores. Run by `make test-environments`."""

import json
import os
from dataclasses import dataclass

import pytest

from osmosis_grpc.environments import open_environment, task_requests
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.trainer import Trainer
from tests.environments.faults import HOW, assert_it_fails, go_wrong
from tests.environments.parity import TASKS, Played, number_of, through_server
from tests.processes import run, server_process

pytestmark = [pytest.mark.environments, pytest.mark.filterwarnings("ignore")]
rg = pytest.importorskip("reasoning_gym")
factory = pytest.importorskip("reasoning_gym.factory")


@pytest.mark.parametrize("name", ["leg_counting", "basic_arithmetic", "word_sorting", "countdown", "mini_sudoku"])
async def test_rewards_are_those_of_the_library(name):
    from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer

    dataset = rg.create_dataset(name, size=TASKS, seed=11)
    answers = {entry["question"]: entry["answer"] for entry in dataset}

    def reply(messages):
        """Right, nearly right, wrong, or without the tags."""
        assert messages[0] == {"role": "system", "content": SYSTEM_PROMPTS["default"]}
        question = messages[-1]["content"]
        right = answers[question]
        kinds = f"So <answer>{right}</answer>", f"<answer>it is {right}!</answer>", "<answer>7</answer>", str(right)
        return kinds[number_of(question, 4)]

    played, outcomes = await through_server(f"reasoning-gym:{name},size={TASKS},seed=11", reply)
    wanted = {}
    for number, entry in enumerate(dataset):
        messages = [{"role": "system", "content": SYSTEM_PROMPTS["default"]}, {"content": entry["question"]}]
        found = extract_answer(reply(messages))
        score = dataset.score_answer(found, entry)
        wanted[str(number)] = Played({"main": score}, {"answered": float(found is not None)}, 1)
    assert played == wanted
    assert len({each.rewards["main"] for each in played.values()}) > 1
    assert outcomes["0"].extra_fields["answer"] == extract_answer(outcomes["0"].messages[-1]["content"])


async def test_a_task_stays_the_same_in_another_process():
    first, second = (open_environment("reasoning-gym:leg_counting") for _ in range(2))
    assert [first.task(key).messages for key in ("0", "7")] == [second.task(key).messages for key in ("0", "7")]
    assert first.version.startswith("reasoning-gym 0.1.")


@pytest.mark.parametrize(
    "spec", ["reasoning-gym:nothing", "reasoning-gym:leg_counting,colour=1", "reasoning-gym:leg_counting,system=none"]
)
def test_a_wrong_name_or_option_is_refused(spec):
    with pytest.raises(ValueError, match=r"reasoning-gym"):
        open_environment(spec)


@dataclass
class Config:
    how: str = ""
    size: int = 1
    seed: int = 0

    def validate(self):
        """All values are right."""


class Wrong(factory.ProceduralDataset):
    """Scores in the way of the option `how`."""

    def __init__(self, config):
        super().__init__(config=config, seed=config.seed, size=config.size)

    def __getitem__(self, number):
        return {"question": "1?", "answer": "1", "metadata": {}}

    def score_answer(self, answer, entry):
        return go_wrong(self.config.how)


@pytest.mark.parametrize("how", HOW)
async def test_what_goes_wrong_is_a_failure_that_names_the_task(how):
    if "wrong" not in factory.DATASETS:
        factory.register_dataset("wrong", Wrong, Config)
    await assert_it_fails(f"reasoning-gym:wrong,how={how},seconds=0.5")


def test_commands_test_and_evaluate_an_environment(tmp_path):
    spec = "reasoning-gym:leg_counting,size=4"
    model = ("--model", "mock:echo", "--save-dir")
    tested = run("-m", "osmosis_grpc", "test", "--env", spec, *model, "t", "--json", cwd=tmp_path)
    assert tested.returncode == 0, tested.stderr
    named = ("-m", f"env:{spec}", "-d", f"env:{spec}", *model, "e", "--n", "2")
    for _ in range(2):  # the second one continues, and finds the same inputs
        evaluated = run("-m", "osmosis_grpc", "eval", *named, cwd=tmp_path)
        assert evaluated.returncode == 0, evaluated.stderr
    about = json.loads((tmp_path / "e" / "run.json").read_text())
    assert (about["agent_loop"], about["dataset"], about["rows"]) == ("reasoning-gym:leg_counting", f"env:{spec}", 4)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--env", "reasoning-gym:nothing"), 2),
        (("--env", "nothing:nothing"), 2),
        (("--env", "reasoning-gym:leg_counting", "-m", "a:b"), 2),
        (("-m", "env:reasoning-gym:leg_counting", "-d", "env:reasoning-gym:leg_counting,size=2"), 1),
    ],
)
def test_commands_refuse_what_does_not_fit(options, code, tmp_path):
    assert run("-m", "osmosis_grpc", "test", *options, "--model", "mock:echo", cwd=tmp_path).returncode == code


@pytest.mark.parametrize("place", ["flag", "table", "variable"])
async def test_a_server_hosts_what_the_option_names(place, tmp_path):
    spec = "reasoning-gym:leg_counting,size=3"
    (tmp_path / "server.toml").write_text(f'[server]\nenv = ["{spec}"]\n')
    arguments = {"flag": ("--env", spec), "table": ("--config", "server.toml"), "variable": ()}[place]
    given = {"env": {**os.environ, "OSMOSIS_ROLLOUT_SERVER_ENV": spec}} if place == "variable" else {}
    with server_process(*arguments, "--no-journal", cwd=tmp_path, **given) as (_, address):
        async with Trainer([address], lambda request: answer(request, "<answer>1</answer>")) as trainer:
            requests = task_requests(open_environment(spec), "r")
            rewards = [outcome.reward async for outcome in trainer.run(requests)]
    assert rewards == [0.0] * 3
