"""Environments of Gymnasium through a server, beside a loop of reset() and step(). Run by `make test-environments`."""

import pytest

from osmosis_grpc.environments import open_environment
from tests.environments.faults import HOW, assert_it_fails, go_wrong
from tests.environments.parity import TASKS, Played, number_of, through_server

pytestmark = [pytest.mark.environments, pytest.mark.filterwarnings("ignore")]
gym = pytest.importorskip("gymnasium")
CASES = {"FrozenLake-v1": 4, "Blackjack-v1": 2, "Taxi-v4": 6, "CliffWalking-v1": 4}
"""How many actions each has."""
LIMIT = 60


def text_of(observation):
    import json

    import numpy as np

    def plain(value):
        if isinstance(value, tuple):
            return [plain(each) for each in value]
        return value.tolist() if isinstance(value, np.ndarray | np.generic) else value

    return json.dumps(plain(observation), separators=(",", ":"))


@pytest.mark.parametrize("name", CASES)
async def test_rewards_parts_and_turns_are_those_of_the_library(name):
    actions = CASES[name]

    def chosen(text, step):
        return number_of(text + str(step), actions)

    def reply(messages):
        steps = sum(message["role"] == "assistant" for message in messages)
        return f"I go {chosen(messages[-1]['content'], steps)}"

    played, _ = await through_server(f"gymnasium:{name},tasks={TASKS},truncate=true", reply, max_turns=LIMIT)
    for seed in range(TASKS):
        env = gym.make(name)
        observation, _ = env.reset(seed=seed)
        total, steps, ended = 0.0, 0, False
        while not ended and steps < LIMIT:
            observation, reward, terminated, truncated, _ = env.step(chosen(text_of(observation), steps))
            total, steps, ended = total + float(reward), steps + 1, terminated or truncated
        assert played[str(seed)] == Played({"main": total}, {"steps": float(steps), "invalid_actions": 0.0}, steps)


async def test_a_model_that_does_not_know_the_form_yet_is_rewarded_with_what_it_did():
    played, outcomes = await through_server("gymnasium:Blackjack-v1,tasks=1", lambda messages: "I like cards")
    assert played["0"] == Played({"main": 0.0}, {"steps": 0.0, "invalid_actions": 3.0}, 3)
    assert outcomes["0"].finish_reason == "invalid_action"


class Echo(gym.Env):
    """An environment with texts, whose reward is the length of the action."""

    action_space = gym.spaces.Text(100, charset="abcdefghijklmnopqrstuvwxyz 0123456789")

    def reset(self, *, seed=None, options=None):
        return f"say {seed} words", {}

    def step(self, action):
        return "thanks", len(action), True, False, {"vowels": sum(letter in "aeiou" for letter in action)}


async def test_texts_are_actions_and_info_has_parts_of_the_reward():
    spec = f'gymnasium:{__name__}:Echo,tasks=2,parts=["vowels"],system=Speak.'
    played, outcomes = await through_server(spec, lambda messages: messages[-1]["content"])
    assert played["1"] == Played({"main": 11.0}, {"steps": 1.0, "invalid_actions": 0.0, "vowels": 2.0}, 1)
    assert [message["content"] for message in outcomes["1"].messages[:2]] == ["Speak.", "say 1 words"]


class Wrong(Echo):
    """Goes wrong in the way of the argument `how`."""

    def __init__(self, how):
        self.how = how

    def step(self, action):
        return "thanks", 1.0 if self.how == "never_ends" else go_wrong(self.how), self.how != "never_ends", False, {}


@pytest.mark.parametrize("how", [*HOW, "never_ends"])
async def test_what_goes_wrong_is_a_failure_that_names_the_task(how):
    await assert_it_fails(f"gymnasium:{__name__}:Wrong,how={how},seconds=0.5", max_turns=3)


@pytest.mark.parametrize("spec", ["gymnasium:Nothing-v0", "gymnasium:Blackjack-v1,colour=1"])
def test_a_wrong_name_or_option_is_refused(spec):
    with pytest.raises(ValueError, match=r"gymnasium"):
        open_environment(spec)
