"""Row C4: `test -i` on a pseudo-terminal."""

import json
import signal

import pytest

from osmosis_grpc.storage import Reader
from tests.cli.test_test import AGENT, ROWS, USUAL
from tests.model_server import KEY, model_server, reply


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT.replace('        print("the agent prints")\n', ""))
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    calls = [{"id": "c", "function": {"name": "divide", "arguments": '{"a": 6, "b": 2}'}}]
    (tmp_path / "script.json").write_text(json.dumps([{"tool_calls": calls}, {"tool_calls": calls}, "It is 3."]))
    return tmp_path


@pytest.fixture
def session(forked, folder):
    """Starts a session. Yields its process and its terminal."""
    return lambda *arguments, **variables: forked.on_terminal(
        *USUAL, "-i", *arguments, cwd=folder, columns=100, **variables
    )


SCRIPT = ("--model", "mock:script=script.json", "--save-dir", "run")


def test_a_row_of_three_turns_then_row_2_then_quit(session, folder):
    with session(*SCRIPT) as (process, terminal):
        begin = terminal.expect("[row 0, chat 1]")
        assert "[row 0 of 3] data.jsonl:1\n" in begin
        assert "  system: Divide.\n  user: What is 6 / 2?\n" in begin
        terminal.send("n")
        turn = terminal.expect("[row 0, chat 2]")
        assert '  assistant calls divide {"a": 6, "b": 2}\n' in turn
        assert "  tool: 3.0\n" in turn
        terminal.send("")  # Enter is n
        terminal.expect("[row 0, chat 3]")
        terminal.send("n")
        end = terminal.expect("[next: row 1]")
        assert "  assistant: It is 3.\n" in end
        assert "row 0  COMPLETED  reward 1  3 chats" in end
        terminal.send("r 2")
        assert "[row 2 of 3] data.jsonl:3" in terminal.expect("[row 2, chat 1]")
        terminal.send("q")
        end = terminal.expect("1 failed (row 2): ")
        assert "row 2 (data.jsonl:3)  CANCELLED" in end
        assert process.wait() == 0
    reader = Reader.look(folder / "run")
    assert len(reader.newest(10)) == 2
    reader.close()


def test_the_other_commands(session, folder):
    with session(*SCRIPT, "--row", "1") as (process, terminal):
        assert "What is 1 / 0?" in terminal.expect("[row 1, chat 1]")
        terminal.send("what")
        said = terminal.expect("[row 1, chat 1]")
        assert "There is no command what here.\n" in said
        assert "c             ask the model until the row ends" in said
        terminal.send("t")
        assert "  divide: Divides a by b.\n" in terminal.expect("[row 1, chat 1]")
        terminal.send("n")
        terminal.expect("[row 1, chat 2]")
        terminal.send("m")
        shown = terminal.expect("[row 1, chat 2]")
        assert shown.index("system: Divide.") < shown.index("user: What is 1 / 0?") < shown.index("tool: 3.0")
        terminal.send("c")
        assert "row 1  COMPLETED  reward 0  3 chats" in terminal.expect("[next: row 2]")
        terminal.send("?")
        terminal.expect("r N           row N")
        terminal.expect("[next: row 2]")
        terminal.send("r 7")
        terminal.expect("There is no row 7; the dataset has the rows 0 to 2.")
        terminal.expect("[next: row 1]")
        terminal.send("r 1")  # the same row again, as a second attempt
        terminal.expect("[row 1, chat 1]")
        terminal.send("i It is \x01 9.")
        end = terminal.expect("[next: row 2]")
        assert "row 1  COMPLETED  reward 1  1 chat" in end
        terminal.send("q")
        assert process.wait() == 0
    reader = Reader.look(folder / "run")
    (name,) = reader.newest(10)
    assert [entry.init.request.attempt for entry in reader.find(name)] == [1, 2]
    reader.close()


def test_an_edited_message_is_what_the_model_gets_in_this_chat(session, folder):
    with session("--model", "mock:echo") as (process, terminal):
        terminal.expect("[row 0, chat 1]")
        terminal.send("e Say 3!")
        assert "  user: Say 3!\n" in terminal.expect("[row 0, chat 1]")
        terminal.send("n")
        assert "  assistant: Say 3!\n" in terminal.expect("[next: row 1]")
        terminal.end_input()
        assert process.wait() == 0


def test_an_error_of_the_model_is_shown_and_the_chat_can_be_tried_again(session, folder):
    answers = [reply("OK"), (400, {"error": {"message": "too \x1b[31mlong"}}), reply("It is 3.")]
    with model_server(lambda body: answers.pop(0)) as server:
        options = ("--model", "tiny", "--base-url", server.url)
        with session(*options, OPENAI_API_KEY=KEY) as (process, terminal):
            terminal.expect("[row 0, chat 1]")
            terminal.send("c")
            said = terminal.expect("[row 0, chat 1]")
            assert "The model gave no reply: the model server answered 400" in said
            assert "\x1b[31m" not in said
            terminal.send("n")
            assert "row 0  COMPLETED" in terminal.expect("[next: row 1]")
            terminal.send("q")
            assert process.wait() == 0


def test_an_interrupt_ends_the_session(session, folder):
    with session(*SCRIPT) as (process, terminal):
        terminal.expect("[row 0, chat 1]")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert json.loads((folder / "run" / "run.json").read_text())["state"] == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "test: -i asks on a terminal, and stdin or stdout is none; leave out -i\n"),
        (("--json",), "test: -i shows a session on stdout; leave out --json\n"),
    ],
)
def test_without_a_terminal_it_is_an_error_and_not_a_wait(forked, folder, arguments, said):
    done = forked.run(*USUAL, "-i", *SCRIPT, *arguments, cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
