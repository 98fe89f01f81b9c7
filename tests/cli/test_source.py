"""The sources of commands that look: a server and its state folder say the same."""

import asyncio
import os
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.cli.place import Place, place_of
from osmosis_grpc.cli.recorded import named
from osmosis_grpc.cli.source import open_source
from osmosis_grpc.protocol.types import RolloutFilter, RolloutState, events
from osmosis_grpc.protocol.types.rollout_info import EVERY
from osmosis_grpc.records.evaluate.run_folder import RUNS, RunFolder
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.records.reading.server_source import ServerSource
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.storage import Reader
from tests.cli.looked_at import recorded
from tests.ports import quiet_port
from tests.waiting import until


def options_of(served, kind):
    """The options that name the server or its state folder."""
    return SourceOptions(where=served.options(kind)[1])


@pytest.fixture(params=["server", "folder"])
async def source(request, looked_at):
    async with open_source("show", options_of(looked_at, request.param)) as source:
        yield source


async def test_an_ended_rollout_has_its_outcome_with_messages_and_tokens(source):
    found = await source.get("good")
    assert (found.state, found.outcome.reward, list(found.outcome.samples)) == (
        RolloutState.COMPLETED,
        1.0,
        ["main", "critic"],
    )
    assert found.outcome.messages[0]["role"] == "system"
    assert sum(len(segment.ids) for segment in found.outcome.samples["main"].segments) > 0
    assert not found.undelivered


async def test_the_activity_of_an_unfinished_rollout_is_that_of_its_engine(source):
    found = await source.get("stuck")
    assert (found.state, found.activity.description, found.outcome) == (RolloutState.RUNNING, "tool forever", None)


async def test_events_after_the_state_of_an_unfinished_rollout_are_the_same(source):
    trail = [event async for event in source.events("stuck")]
    found = await source.get("stuck")
    assert [event async for event in source.events("stuck", found.attempt)] == trail
    assert [event async for event in source.events("stuck", found.attempt)] == trail


async def test_events_end_at_the_newest_of_an_unfinished_rollout(source):
    found = [event async for event in source.events("stuck")]
    assert [event.event_number for event in found] == list(range(1, len(found) + 1))
    assert isinstance(found[-1].kind, events.ToolCalled)
    assert [event.event_number async for event in source.events("stuck", after=3)] == [
        event.event_number for event in found[3:]
    ]
    assert [event async for event in source.events("stuck", after=len(found))] == []


async def test_followed_events_of_an_ended_rollout_end_with_its_delivery(source):
    found = [event async for event in source.events("good", follow=True)]
    assert isinstance(found[-1].kind, events.Delivered)


async def test_what_is_not_there_says_what_to_do(source):
    with pytest.raises(SourceError, match=r"there is no rollout god.*; "):
        await source.get("god")
    with pytest.raises(SourceError, match="attempt 7"):
        await source.get("good", 7)
    with pytest.raises(SourceError, match="there is no rollout god"):
        async for _ in source.events("god", follow=True):
            pass


@pytest.mark.parametrize("kind", ["server", "folder"])
async def test_new_events_of_one_and_of_all_rollouts_are_followed_while_a_server_writes(written, kind):
    address, options = written.address, options_of(written, kind)
    seen: dict[str, list[str]] = {}
    async with recorded(address, f"{kind}-old"), open_source("events", options) as source:

        async def follow_all():
            async with aclosing(source.all_events()) as trail:
                async for event in trail:
                    seen.setdefault(event.rollout_id, []).append(type(event.kind).__name__)

        following = asyncio.create_task(follow_all())
        try:
            number = 0

            async def is_following():
                nonlocal number
                number += 1
                async with recorded(address, f"{kind}-{number}"):
                    return bool(seen)

            await until(is_following)
            async with recorded(address, f"{kind}-last"):
                await until(lambda: "Delivered" in seen.get(f"{kind}-last", []))
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    assert seen[f"{kind}-last"][:2] == ["Accepted", "Started"]
    assert f"{kind}-old" not in seen


@pytest.mark.parametrize("kind", ["server", "folder"])
async def test_one_rollout_is_followed_to_its_end(written, kind):
    address, options = written.address, options_of(written, kind)
    name = f"stuck-{kind}"
    found = []
    async with (
        open_source("events", options) as source,
        recorded(address, name) as client,
        aclosing(source.events(name, follow=True)) as trail,
    ):
        async for event in trail:
            found.append(type(event.kind).__name__)
            if found[-1] == "ToolCalled":
                await client.cancel(name)
    assert (found[0], found[-1]) == ("Accepted", "Delivered")
    assert "Ended" in found


async def test_lists_of_one_source_are_those_of_a_new_source_and_read_only_new_events(written, monkeypatch):
    def options():
        return options_of(written, "folder")

    events_read = []
    read = Reader.open_trails

    def counted(reader, sequences, known=None):
        found = read(reader, sequences, known)
        events_read.append(sum(len(trail.events) for trail in found.values()))
        return found

    monkeypatch.setattr(Reader, "open_trails", counted)

    async def both(kept):
        """The rows of a source that has read before, and of one that has not, at the same commit."""
        while True:
            async with open_source("list", options()) as new:
                before, rows, after = [
                    (await source.page(EVERY, limit=20, newest_first=True))[0] for source in (kept, new, kept)
                ]
                headers = [await source.headers(EVERY, limit=20, newest_first=True) for source in (kept, new)]
            if before == after and headers[0] == headers[1]:
                return {info.rollout_id: info for info in before}, {info.rollout_id: info for info in rows}

    async with open_source("list", options()) as kept:
        async with recorded(written.address, "stuck-seen") as client:

            async def has_tool():
                return (await both(kept))[0]["stuck-seen"].activity.description == "tool forever"

            await until(has_tool)
            found, wanted = await both(kept)
            assert found == wanted
            assert found["stuck-seen"].chats > 0
            events_read.clear()
            await kept.page(EVERY)
            assert events_read == [0]
            await client.cancel("stuck-seen")

            async def is_settled():
                info = (await both(kept))[0]["stuck-seen"]
                return info.end_time is not None and not info.undelivered

            await until(is_settled)
        found, wanted = await both(kept)
        assert found == wanted
        assert found["stuck-seen"].state == RolloutState.CANCELLED


def made_run(name="", *, command="test"):
    """Make the folder of a run with an empty journal, as the newest of all runs."""
    run = RunFolder.create(RUNS / name if name else None, {"command": command})
    run.unlock()
    (run.path / "journal.db").write_bytes(b"x")
    return run.path


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder without settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OSMOSIS_ROLLOUT_SERVER_STATE_DIR", raising=False)
    return tmp_path


def test_without_a_name_it_is_the_newest_of_the_state_folder_and_the_runs_else_the_usual_server(here, capsys):
    state = Path(".osmosis/state")
    assert place_of("show", None).server == "127.0.0.1:50051"
    state.mkdir(parents=True)
    (state / "journal.db").write_bytes(b"x")
    assert place_of("show", None) == Place(state)
    assert capsys.readouterr().err == ""
    run = made_run()
    os.utime(run / "journal.db", (2e9, 2e9))
    assert place_of("show", None) == Place(run)
    os.utime(state / "journal.db", (3e9, 3e9))
    assert place_of("show", None) == Place(state)
    assert capsys.readouterr().err.splitlines() == [
        f"show: reads the newest, {each}; --from names another" for each in (run, state)
    ]


def test_the_state_folder_of_the_settings_counts(looked_at, here, monkeypatch):
    folder = looked_at.folder / "state"
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_STATE_DIR", str(folder))
    assert isinstance(open_source("show", SourceOptions()), FolderSource)
    for empty in (str(folder / "none"), ":memory:"):
        monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_STATE_DIR", empty)
        found = open_source("show", SourceOptions())
        assert isinstance(found, ServerSource)
        assert found.where == "the server 127.0.0.1:50051"


def test_a_run_is_named_by_its_folder_its_name_its_id_a_beginning_or_last(here):
    first, second = made_run("20260101-000000-a1b2c3d"), made_run("20260101-000001-a1c2c3d")
    assert place_of("list", "last") == Place(second)
    for name in (str(first), first.name, "a1b2c3d", "a1b", "20260101-000000"):
        assert place_of("list", name) == Place(first)
        assert RunFolder.open(name).path == first
    assert Place(first).words == "--from a1b2c3d"
    for several in ("a1", "2026"):
        with pytest.raises(typer.Exit):
            place_of("list", several)
    (first / "elsewhere").mkdir()
    assert Place(first / "elsewhere").words == f"--from {first / 'elsewhere'}"


async def test_a_rollout_is_named_by_its_id_its_number_or_a_beginning(source):
    for name in ("good", "go"):
        assert (await named(source, name)).rollout_id == "good"
    with pytest.raises(SourceError):
        await named(source, "3")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("31", "test-a-31"),
        ("32.0", "eval-b-32.0"),
        ("310", "test-a-310"),
        ("test-a-31", "test-a-31"),
        ("ev", "eval-b-32.0"),
    ],
)
async def test_a_number_is_the_end_of_an_id(written, name, found):
    async with recorded(written.address, "test-a-31", "test-a-310", "eval-b-32.0"):
        pass
    async with open_source("show", options_of(written, "folder")) as source:
        assert (await named(source, name)).rollout_id == found
        with pytest.raises(SourceError):
            await named(source, "test-a")


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"where": "nowhere"}, "show: --from: nowhere is no folder and no run"),
        ({"where": "localhost:http"}, "show: --from: localhost:http is not HOST:PORT"),
        ({"where": "10.0.0.1:1", "token": "s3cret"}, "10.0.0.1:1 is not loopback, and the token would travel"),
        ({"where": "a:1", "cert": "x"}, "--cert and --key go together"),
        ({"where": "a:1", "token_file": "/nonexistent"}, "--token-file: /nonexistent cannot be used"),
        ({"where": ":memory:"}, "a journal in memory is gone with its server"),
    ],
)
def test_wrong_options_end_with_2_and_one_line(given, reported, capsys):
    with pytest.raises(typer.Exit) as ended:
        open_source("show", SourceOptions(**given))
    assert ended.value.exit_code == 2
    line = capsys.readouterr().err
    assert reported in line
    assert line.count("\n") == 1
    assert "s3cret" not in line


async def test_a_server_that_is_away_and_a_folder_without_a_journal(tmp_path):
    options = SourceOptions(where=f"127.0.0.1:{quiet_port()}")
    with pytest.raises(SourceError, match=r"refuses connections; start it, or name another with --from"):
        await open_source("show", options).__aenter__()
    async with open_source("show", SourceOptions(where=str(tmp_path))) as source:
        with pytest.raises(SourceError, match=r"there is no journal .*; --from names"):
            await source.get("good")


async def test_the_message_about_the_usual_server_says_that_there_is_no_journal(tmp_path, monkeypatch):
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("osmosis_grpc.cli.place.SERVER", f"127.0.0.1:{quiet_port()}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        SourceError,
        match=rf"^there is no journal in {tmp_path} and no run in .osmosis/runs, and the server 127\.0\.0\.1",
    ):
        await open_source("show", SourceOptions()).__aenter__()


async def test_a_command_without_a_source_says_that_it_reads_the_server(looked_at, tmp_path, monkeypatch, capsys):
    server = looked_at.options("server")[1]
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("osmosis_grpc.cli.place.SERVER", server)
    async with open_source("list", SourceOptions()) as source:
        assert await source.get("good")
    said = capsys.readouterr()
    assert (
        said.err
        == f"list: there is no journal in {tmp_path} and no run in {RUNS}, and the command reads the server {server}\n"
    )
    async with open_source("list", SourceOptions(where=server)):
        assert capsys.readouterr() == ("", "")


async def test_a_server_that_does_not_speak_grpc_says_how_to_reach_it(refused_at_once):
    async def answer(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with open_source("show", SourceOptions(where=f"127.0.0.1:{port}")) as source:
            with pytest.raises(SourceError, match="--from, --token and --tls say how to reach it"):
                await source.get("good")


async def test_headers_are_the_rows_of_a_page(source):
    for where in (EVERY, RolloutFilter(states=(RolloutState.COMPLETED,)), RolloutFilter(min_reward=0.5)):
        for newest_first in (True, False):
            page = (await source.page(where, newest_first=newest_first))[0]
            headers, cut = await source.headers(where, limit=100, newest_first=newest_first)
            assert [replace(info, group=None, fork=None) for info in headers] == [
                replace(info, group=None, fork=None) for info in page
            ]
            assert not cut
            assert page
            newest, cut = await source.headers(where, limit=1, newest_first=newest_first)
            assert [info.rollout_id for info in newest] == [page[0].rollout_id]
            assert cut == (len(page) > 1)
