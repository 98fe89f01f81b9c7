"""The transcript of a rollout: rewards, policies and parents of its samples."""

from osmosis_grpc.cli.transcript import transcript
from osmosis_grpc.protocol.types import ChatRef, ChatReward, OutcomeStatus, RolloutOutcome, Sample

MESSAGES = [{"role": "user", "content": "hello"}]


def lines(reward=None, **samples):
    outcome = RolloutOutcome(rollout_id="r", status=OutcomeStatus.COMPLETED, reward=reward, samples=samples)
    return list(transcript(outcome, []))


def test_one_sample_has_its_reward_in_the_last_line():
    assert lines(1.0, main=Sample(messages=MESSAGES, reward=1.0)) == [
        "conversation (main)",
        "  user: hello",
        "COMPLETED: 0 turns, 0 tool calls, reward 1, 0.00 s",
    ]


def test_components_and_rewards_of_chats_are_shown():
    chats = (ChatReward(chat_number=1, reward=0.25), ChatReward(chat_number=3, reward_components={"short": 1.0}))
    sample = Sample(messages=MESSAGES, reward=0.5, reward_components={"format": 1.0, "x\n": 0.0}, chat_rewards=chats)
    assert lines(0.5, main=sample)[2:] == [
        "  reward 0.5 (format 1, x\\n 0)",
        "  chat 1: reward 0.25",
        "  chat 3: no reward (short 1)",
        "COMPLETED: 0 turns, 0 tool calls, reward 0.5, 0.00 s",
    ]


def test_several_samples_show_their_rewards_policies_and_parents():
    shown = lines(
        main=Sample(messages=MESSAGES, reward=1.0, policy="planner"),
        solve=Sample(messages=MESSAGES, reward=-1.0, policy="a\x1b", parent=ChatRef("main", 2)),
        judge=Sample(messages=MESSAGES, parent=ChatRef("main"), train=False),
    )
    assert shown == [
        "conversation (main, policy planner)",
        "  user: hello",
        "  reward 1",
        "conversation (solve, policy a\\x1b, from main chat 2)",
        "  user: hello",
        "  reward -1",
        "conversation (judge, from main, not trained on)",
        "  user: hello",
        "COMPLETED: 0 turns, 0 tool calls, reward 0 (mean of 2 samples), 0.00 s",
    ]


def test_without_any_reward_the_last_line_says_so():
    assert lines(main=Sample(messages=MESSAGES))[-1] == "COMPLETED: 0 turns, 0 tool calls, no reward, 0.00 s"
