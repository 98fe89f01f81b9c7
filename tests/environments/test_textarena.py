"""Games of TextArena through a server, beside TextArena's own loop. Run by `make test-environments`."""

from collections import Counter

import pytest

from osmosis_grpc.environments import open_environment
from tests.environments.faults import HOW, REWARDS, assert_it_fails, go_wrong
from tests.environments.parity import TASKS, Played, number_of, through_server

pytestmark = [pytest.mark.environments, pytest.mark.filterwarnings("ignore")]
ta = pytest.importorskip("textarena")
GAMES = {
    "GuessTheNumber-v0": (1, 20),
    "Bandit-v0": (1, 5),
    "Blackjack-v0": (1, 2),
    "TicTacToe-v0": (2, 9),
    "KuhnPoker-v0-short": (2, 4),
    "PigDice-v0-short": (2, 2),
}
"""The players of each game, and between how many actions the model chooses."""
WORDS = {
    "Bandit-v0": ["[red]", "[blue]", "[green]", "[yellow]", "[purple]"],
    "Blackjack-v0": ["[Hit]", "[Stand]"],
    "KuhnPoker-v0-short": ["[Check]", "[Bet]", "[Call]", "[Fold]"],
    "PigDice-v0-short": ["[roll]", "[hold]"],
}


def action(game, first, turn):
    """A player's action, by the first thing that it has heard, and how often it has moved."""
    chosen = number_of(f"{first} {turn}", GAMES[game][1])
    return WORDS[game][chosen] if game in WORDS else f"[{chosen}]"


def reply_of(game):
    def reply(messages):
        said = [message["content"] for message in messages if message["role"] == "user"]
        return action(game, said[0], len(said))

    return reply


def own_loop(game, seed):
    """One game as TextArena's examples play it: its rewards, its game info, how often who moved, and what was shown."""
    env = ta.make(game)
    env.reset(num_players=GAMES[game][0], seed=seed)
    done, turns, first, shown = False, Counter(), {}, {}
    while not done:
        player, shown[player] = env.get_observation()
        first.setdefault(player, str(shown[player]).strip("\n"))
        turns[player] += 1
        done, _ = env.step(action=action(game, first[player], turns[player]))
    return *env.close(), turns, shown


@pytest.mark.parametrize("game", GAMES)
async def test_rewards_parts_and_turns_are_those_of_the_library(game):
    played, _ = await through_server(f"textarena:{game},tasks={TASKS}", reply_of(game))
    for seed in range(TASKS):
        rewards, info, turns, _ = own_loop(game, seed)
        names = {player: f"player-{player}" if player else "main" for player in turns}
        parts = {name: float(info[0][name]) for name in ("turn_count", "invalid_move")} if len(rewards) == 1 else {}
        wanted = {names[player]: float(rewards[player]) for player in turns}
        assert played[str(seed)] == Played(wanted, parts, turns.total())


@pytest.mark.parametrize("game", ["GuessTheNumber-v0", "KuhnPoker-v0-short"])
async def test_a_player_hears_what_textarena_shows_in_the_same_order(game):
    _, outcomes = await through_server(f"textarena:{game},tasks=5", reply_of(game))
    for seed in range(5):
        *_, shown = own_loop(game, seed)
        for player, text in shown.items():
            messages = outcomes[str(seed)].samples[f"player-{player}" if player else "main"].messages
            at = 0
            for message in messages:
                if message["role"] == "user":
                    at = text.index(message["content"].partition("\n[")[0], at)


class Wrong(ta.Env):
    """A game that goes wrong in the way of the argument `how`."""

    def __init__(self, how):
        self.how = how

    def reset(self, num_players, seed=None):
        self.state = ta.SinglePlayerState(num_players=num_players, seed=seed)
        self.state.reset(game_state={}, player_prompt_function=lambda player_id, game_state: "Play.")

    def step(self, action):
        if self.how in ("raises", "hangs"):
            go_wrong(self.how)
        if self.how != "never_ends":
            self.state.set_outcome(reward=REWARDS[self.how], reason="over")
        return self.state.step()


@pytest.mark.parametrize("how", [*HOW, "never_ends"])
async def test_what_goes_wrong_is_a_failure_that_names_the_task(how, monkeypatch):
    if "Wrong-v0" not in ta.envs.registration.ENV_REGISTRY:
        ta.envs.registration.register(id="Wrong-v0", entry_point=f"{__name__}:Wrong")
    await assert_it_fails(f"textarena:Wrong-v0,how={how},players=1,seconds=0.5", max_turns=3)


@pytest.mark.parametrize("spec", ["textarena:Nothing-v0", "textarena:TicTacToe-v0,players=5", "textarena:Chess-v0,a=1"])
def test_a_wrong_name_or_option_is_refused(spec):
    with pytest.raises(ValueError, match=r"TextArena|textarena"):
        open_environment(spec)
