"""The show command, on a server and on the state folder that the server uses."""

import json
import re
import shutil
import unicodedata

import pytest

from tests.cli.looked_at import THOUGHT

ESCAPES = re.compile(r"\x1b\[(1|2|31|32|33|36|1;31|0)m")
"""The colours of the screen itself."""


@pytest.fixture(scope="session")
def show(looked_at, forked):
    """Runs the command, on the state folder by default."""

    def start(*arguments, kind="folder"):
        command = ("-m", "osmosis_grpc", "show", *arguments, *looked_at.options(kind))
        return forked.run(*command, cwd=looked_at.folder)

    return start


@pytest.fixture(scope="session")
def on_terminal(looked_at, forked):
    """Runs a command on a terminal, for the state folder. Returns its exit code, and all that it wrote."""

    def start(*arguments, **options):
        return forked.shown("-m", "osmosis_grpc", *arguments, *looked_at.options("folder"), **options)

    return start


def steady(text):
    """The lines of a text without its times and versions, which differ in each run."""
    text = re.sub(r"\d+-\d+-\d+ \d+:\d+:\d+Z", "DATE", text)
    text = re.sub(r"version [0-9a-f]+", "version V", text)
    text = re.sub(r"\d+\.\d+ (m?s)\b( \(\d+ %\))?", r"T \1", text)
    return re.sub(r"\d+ (tokens|prompt tokens|response tokens)", r"N \1", text).splitlines()


WHOLE = """\
rollout good, attempt 1, agent loop traveller version V
accepted DATE, ended T s later
label: sunny

conversation (main)
  system: You know the weather.
  user: How is Paris?
  1 reasoning: 2 lines, 95 characters (--reasoning shows it)
  1 assistant (T s, N tokens) calls weather {"city": "Paris"}
      result (T ms): sunny, 21 degrees
        ... 19 more lines (--turn 1 shows them)
  2 reasoning: 2 lines, 95 characters
  2 assistant (T s, N tokens) calls weather {"city": "Paris"}
      result (T ms): sunny, 21 degrees
        ... 19 more lines (--turn 2 shows them)
  3 assistant (T s, N tokens): It is sunny in Paris.
  no reward (format 1)

conversation (critic, from main chat 1, not trained on)
  user: Is it right?
  1 assistant (T s, N tokens): It is right.
  reward 0.5

log graded: by "hand"
time T s: queue T s, model T s, tools T s,
  agent T s
tool weather: 2 calls, T s, slowest T s in turn 1
4 turns, 2 tool calls, N prompt tokens, N response tokens
reward 1
COMPLETED (stop)"""


@pytest.mark.parametrize("kind", ["server", "folder"])
def test_a_rollout_is_shown_whole(show, kind):
    done = show("good", kind=kind)
    assert (done.returncode, done.stderr) == (0, "")
    text = re.sub(r"(\n        sunny, 21 degrees){11}\n        \.\.\. 8", "\n        ... 19", done.stdout)
    lines, expected = steady(text), WHOLE.splitlines()
    lines = [re.sub(r"in turn \d", "in turn 1", line) for line in lines]
    assert lines == expected


@pytest.mark.parametrize("kind", ["server", "folder"])
def test_the_place_of_a_failure_comes_last_and_the_conversation_once(show, kind):
    done = show("bad", kind=kind)
    assert (done.returncode, done.stderr) == (1, "")
    lines = steady(done.stdout)
    start = next(number for number, line in enumerate(lines) if line.startswith("FAILED"))
    source = {"read": 'raise LookupError(f"cannot read {text!r}")', "Traveller.run": 'read(result["content"])'}
    frames = [re.fullmatch(r"  agents\.py:(\d+) in ([\w.]+): (.*)", line) for line in lines[start + 3 : start + 5]]
    assert [frame[2] for frame in frames] == ["Traveller.run", "read"]
    assert all(frame[3] == source[frame[2]] for frame in frames)
    assert lines[start : start + 3] == [
        f"FAILED at agents.py:{frames[-1][1]} in read: LookupError: cannot read 'no such city:",
        "  Atlantis'",
        "  reason AGENT_EXCEPTION, agent; see osmosis-grpc docs AGENT_EXCEPTION",
    ]
    assert lines[start + 5 :] == []
    assert done.stdout.count('calls weather {"city": "Atlantis"}') == 1
    assert done.stdout.count("    result (") == 2


@pytest.mark.parametrize("kind", ["server", "folder"])
def test_a_stuck_tool_is_named_with_its_time(show, kind):
    done = show("stuck", kind=kind)
    assert (done.returncode, done.stderr) == (0, "")
    lines = steady(done.stdout)
    assert lines[-1] == "RUNNING: tool forever, for T s"
    assert "tool forever: 1 call, T s, 1 did not return" in lines
    assert lines[lines.index("  1 assistant (T s, N tokens) calls forever {}") + 1] == "      it runs, for T s"


def test_reasoning_is_shown_on_request(show):
    shown = show("bad", "--reasoning").stdout
    for line in THOUGHT.splitlines():
        assert line in shown
        assert line not in show("bad").stdout


def test_a_turn_is_shown_whole(show):
    done = show("good", "--turn", "2")
    text = done.stdout[done.stdout.index("turn 2") :]
    assert text.count("sunny, 21 degrees") == 40  # the result that is new, and the result of its own call
    lines = steady(text)
    assert lines[:3] == ["turn 2", "  it continues turn 1; these messages are new:", "  tool (c1): sunny, 21 degrees"]
    assert "  asked with temperature 0.5" in lines
    assert "  2 reasoning: The user asks for the weather." in lines
    assert "more lines" not in text


def test_a_sample_is_shown_alone(show):
    text = show("good", "--sample", "critic").stdout
    assert "conversation (critic" in text
    assert "conversation (main" not in text
    assert [
        line for line in show("good", "--sample", "critic", "--turn", "1").stdout.splitlines() if "turn" in line
    ] == ["turn 1 of critic"]


def test_tokens_are_those_of_the_record(show):
    text = show("good", "--tokens").stdout
    record = json.loads(show("good", "--tokens", "--json").stdout.splitlines()[0])
    (segment,) = record["samples"]["main"]["segments"]
    sampled = sum(segment["mask_runs"][1::2])
    assert f"  segment 1: {len(segment['ids'])} tokens, {sampled} sampled, turns 1, 2, 3" in text.splitlines()
    first = segment["mask_runs"][0]
    assert f"prompt  {first:>6}: {' '.join(map(str, segment['ids'][:first]))}"[:60] in text
    assert len(segment["logprobs"]) == sampled
    bare = json.loads(show("good", "--json").stdout.splitlines()[0])
    assert "segments" not in bare["samples"]["main"]


@pytest.mark.parametrize("kind", ["server", "folder"])
def test_records(show, kind):
    done = show("bad", "--json", kind=kind)
    assert (done.returncode, done.stderr) == (1, "")
    rollout, *turns = map(json.loads, done.stdout.splitlines())
    assert [turn["turn"] for turn in turns] == [1, 2]
    assert rollout["event"] == "rollout"
    assert (rollout["status"], rollout["failing_turn"]) == ("FAILED", {"sample": "main", "turn": 2})
    assert rollout["failure"]["frames"][-1]["function"] == "read"
    assert [tool["name"] for tool in rollout["tools"]] == ["weather", "weather"]
    times = rollout["times"]
    assert sum(times[name] for name in ("queue", "model", "tools", "agent")) == pytest.approx(times["total"])
    assert turns[1]["tool_results"][0]["message"]["content"] == "no such city: Atlantis"
    assert turns[0]["reply"]["message"]["reasoning_content"] == THOUGHT
    assert "prompt_ids" not in turns[0]["reply"]
    (turn,) = map(json.loads, show("bad", "--json", "--turn", "2", kind=kind).stdout.splitlines())
    assert turn == turns[1]


def columns(line):
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


@pytest.mark.parametrize(
    "command", [["show", "evil", "--reasoning"], ["show", "evil", "--turn", "1"], ["events", "evil"]]
)
def test_escape_sequences_have_no_effect_on_a_terminal(on_terminal, command):
    """Only the colours of the screen itself come through."""
    code, text = on_terminal(*command, columns=120)
    assert code == 0, text
    assert ESCAPES.search(text)
    rest = ESCAPES.sub("", text)
    assert all(char.isprintable() or char == "\n" for char in rest), ascii(rest)
    assert r"\x1b[2J\x1b]0;owned\x07" in rest
    assert r"\u202e" in rest


@pytest.mark.parametrize("command", [["show", "evil", "--json"], ["events", "evil", "--json"]])
def test_records_on_a_terminal_have_no_escape_sequences(on_terminal, command):
    code, text = on_terminal(*command)
    assert code == 0, text
    assert all(char.isprintable() or char == "\n" for char in text), ascii(text)
    assert [json.loads(line)["rollout_id"] for line in text.splitlines()].count("evil") > 2


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colours(on_terminal, variables):
    code, text = on_terminal("show", "bad", **variables)
    assert code == 1
    assert "\x1b" not in text
    assert "\x1b" in on_terminal("show", "bad")[1]


def test_a_pipe_is_plain_and_80_columns_wide(show):
    done = show("evil", "--reasoning", "--tokens")
    assert "\x1b" not in done.stdout
    assert max(map(columns, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("command", "width"),
    [
        (["show", "good", "--tokens"], 40),
        (["show", "bad", "--reasoning"], 80),
        (["events", "bad"], 40),
        (["show", "--help"], 80),
    ],
)
def test_lines_fit_the_terminal(on_terminal, command, width):
    _, text = on_terminal(*command, columns=width)
    text = ESCAPES.sub("", text)
    assert max(map(columns, text.splitlines())) <= width, text


@pytest.mark.parametrize("kind", ["server", "folder"])
def test_what_cannot_be_shown_is_one_line(show, kind):
    wrong = (
        (["nope"], "show: there is no rollout nope"),
        (["good", "--turn", "9"], "show: rollout good has no turn 9; it has: main 1, main 2, main 3, critic 1"),
        (["good", "--sample", "x"], "show: rollout good has no sample x; it has: main, critic"),
        (["good", "--attempt", "3"], "attempt 3"),
    )
    for arguments, reported in wrong if kind == "folder" else wrong[:1]:
        done = show(*arguments, kind=kind)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert reported in done.stderr


def test_a_copy_of_the_folder_is_shown_without_a_server_and_stays_as_it_is(show, forked, looked_at, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(looked_at.folder / "state", copied)
    before = {path.name: path.read_bytes() for path in copied.iterdir() if path.suffix in (".db", ".db-wal")}
    done = forked.run("-m", "osmosis_grpc", "show", "bad", "--from", str(copied))
    assert (done.returncode, done.stdout) == (1, show("bad").stdout)
    assert before == {name: (copied / name).read_bytes() for name in before}
