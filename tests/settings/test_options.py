"""Every option: flag, variable, file .env, wrong values, and --help. The effects of all in real processes."""

import asyncio
import functools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from click.testing import CliRunner
from pydantic import SecretStr

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol.errors import InvalidArgument, Unauthenticated
from osmosis_grpc.settings.command_line import OPTIONS, options_of
from osmosis_grpc.settings.option import Secret
from osmosis_grpc.settings.settings import RolloutSettings, command_settings, unknown_variables
from osmosis_grpc.settings.typer_command import add_command
from osmosis_grpc.trainer import Callback, ClientTls, RolloutClient, ServerSecurity, Trainer
from tests.ports import quiet_port
from tests.processes import ROOT, run
from tests.security.conftest import Files

CALCULATOR = "osmosis_grpc.testing.calculator:agent_loop"
QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]

# By variable: a good text, its value, and a wrong text. The rows of the other options follow from their kinds.
TEXTS = {
    "SERVER_MODULE": ("a:b c:d", ("a:b", "c:d"), "a:"),
    "SERVER_ENV": ("a:b c:d,e=1", ("a:b", "c:d,e=1"), "a:"),
    "SERVER_WORKFLOW_CONFIG": ("a=1 b=x", ("a=1", "b=x"), "a"),
    "SERVER_GRADER_CONFIG": ("a=1 b=x", ("a=1", "b=x"), "a"),
    "SERVER_GRADER": ("a:B", "a:B", "a"),
    "SERVER_LEGACY_AGENT": ("x=http://h:1", ("x=http://h:1",), "h:1"),
    "SERVER_LEGACY_LISTEN": ("127.0.0.1:7", "127.0.0.1:7", "7"),
    "SERVER_COMMAND": ("a b\nc", "a b\nc", "a 'b"),
    "SERVER_COMMAND_NAME": ("a b", ("a", "b"), ""),
    "SERVER_PIN_SAMPLING": ("temperature=1 top_k=5", ("temperature=1", "top_k=5"), "temperature=-1"),
    "SERVER_COMMAND_ENV": ("HF_HOME X", ("HF_HOME", "X"), "OPENAI_API_KEY"),
    "SERVER_HOST": ("localhost", "localhost", ""),
    "SERVER_CONNECT": ("a:1 b:2", ("a:1", "b:2"), "a:1 b"),
    "SERVER_ALLOW_TARGET": ("10.0.0.1 10.1.0.0/16", ("10.0.0.1", "10.1.0.0/16"), ""),
    "SERVER_STATE_DIR": ("x", "x", ""),
    "SERVER_LOG_LEVEL": ("debug", "debug", "loud"),
    "SERVER_RAY_RESOURCES": ("CPU=0.5 box=1", ("CPU=0.5", "box=1"), "CPU=0"),
    "SERVER_PROGRAM": ("codex mine.toml", ("codex", "mine.toml"), ""),
    "SERVER_BOX": ("docker:a/b:1", "docker:a/b:1", "podman:a"),
    "SERVER_REWARD": ("python grade.py", "python grade.py", "'open"),
    "SERVER_RAY_NAME": ("x", "x", "a/b"),
    "CLIENT_TARGET": ("h:1", "h:1", "h"),
}


def row_of(option):
    """A good text of an option, its value, and a wrong text."""
    name = option.variable.removeprefix("OSMOSIS_ROLLOUT_")
    if name in TEXTS:
        return TEXTS[name]
    if option.switch:
        return "true", True, "perhaps"
    if option.kind is Path:
        return "x.toml", Path("x.toml"), ""
    if option.kind is Secret:
        return ("a=one\ntwo", SecretStr("a=one\ntwo"), " one") if option.lines else ("s", SecretStr("s"), "\u00e9")
    assert option.bounds, f"{option.variable}: a number needs bounds, and a text a row in TEXTS"
    least, most = option.bounds
    number = option.kind(most if least == option.value else least)
    return f"{number:.12g}", number, f"{least - 1:.12g}"


ROWS = {variable: row_of(option) for variable, option in OPTIONS.items()}


@pytest.fixture(autouse=True)
def _own_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.toml").touch()
    for name in [name for name in os.environ if name.startswith("OSMOSIS_")]:
        monkeypatch.delenv(name)


@functools.cache
def line_of(of):
    """The command line of a command, which hands on its settings. It takes long to build."""
    app = typer.Typer()
    add_command(app, of, "", lambda line: given.append(command_settings(line)))
    return typer.main.get_command(app)


given = []
"""The settings of the last line of each command."""


def by_flags(*arguments, of="serve"):
    """The settings of a command with these flags; raises what a command line refuses."""
    result = CliRunner().invoke(line_of(of), arguments)
    if result.exception is not None:
        raise result.exception
    return given.pop()


def value(settings, field):
    return getattr(getattr(settings, field.part), field.name)


@pytest.mark.parametrize("variable", ROWS)
def test_a_variable_is_read_from_the_environment_and_from_dotenv(tmp_path, monkeypatch, variable):
    text, expected, _ = ROWS[variable]
    assert value(RolloutSettings(), OPTIONS[variable]) != expected
    (tmp_path / ".env").write_text(f'{variable}="{text}"\n')
    assert value(RolloutSettings(), OPTIONS[variable]) == expected
    (tmp_path / ".env").write_text(f"{variable}=\n")
    monkeypatch.setenv(variable, text)  # it wins over .env
    assert value(RolloutSettings(), OPTIONS[variable]) == expected


@pytest.mark.parametrize("variable", ROWS)
def test_a_wrong_value_is_refused_by_the_variables_name(monkeypatch, variable):
    field, wrong = OPTIONS[variable], ROWS[variable][2]
    monkeypatch.setenv(variable, wrong)
    with pytest.raises(ValueError) as refused:
        by_flags(of=field.commands[0])
    assert str(refused.value).startswith(f"{variable}: ")
    if "TOKEN" in variable:
        assert wrong.strip() not in str(refused.value).removeprefix(variable).split()


@pytest.mark.parametrize(
    ("flag", "text", "reported"),
    [
        ("--grpc-port", "abc", "'abc' is not a whole number"),
        ("--grpc-port", "1.5", "'1.5' is not a whole number"),
        ("--grpc-port", "70000", "70000 is not in the range 0 to 65535"),
        ("--drain-timeout", "soon", "'soon' is not a number"),
        ("--drain-timeout", "nan", "nan is not in the range 0 to 86400"),
    ],
)
def test_a_wrong_value_is_shown_in_plain_words(flag, text, reported):
    with pytest.raises(ValueError) as refused:
        by_flags(flag, text)
    assert str(refused.value) == f"{flag}: {reported}"


def test_a_switch_that_is_neither_on_nor_off_is_said_in_plain_words(monkeypatch):
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_NO_HTTP", "perhaps")
    with pytest.raises(ValueError, match=r"^OSMOSIS_ROLLOUT_SERVER_NO_HTTP: 'perhaps' is not true or false$"):
        by_flags()


@pytest.mark.parametrize("variable", [variable for variable in ROWS if OPTIONS[variable].flags])
def test_a_flag_wins_over_its_variable_and_gives_the_same(monkeypatch, variable):
    field, (text, expected, wrong) = OPTIONS[variable], ROWS[variable]
    of, flag = field.commands[0], field.flag
    values = text.split("\n" if field.lines else None) if field.several else [text]
    arguments = [flag] if field.switch else [part for each in values for part in (flag, each)]
    assert value(by_flags(*arguments, of=of), field) == expected
    if field.switch:
        monkeypatch.setenv(variable, "true")
        assert value(by_flags(field.off, of=of), field) is False
    elif field.lines and field.kind is Secret:  # tokens of both are accepted
        monkeypatch.setenv(variable, "known")
        assert value(by_flags(*arguments, of=of), field) == SecretStr(f"known\n{text}")
    elif field.metavar == "KEY=VALUE":  # the values of both are used
        monkeypatch.setenv(variable, "known=1")
        assert value(by_flags(*arguments, of=of), field) == ("known=1", *expected)
    else:
        monkeypatch.setenv(variable, wrong)
        assert value(by_flags(*arguments, of=of), field) == expected
    if not field.switch:
        monkeypatch.delenv(variable)
        with pytest.raises(ValueError) as refused:
            by_flags(flag, wrong, of=of)
        assert str(refused.value).startswith(f"{flag}: ")


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize(
    ("of", "module"),
    [("serve", ("osmosis_grpc", "serve")), ("serve", ("osmosis_grpc.serve",)), ("gateway", ("osmosis_gateway",))],
)
def test_help_names_every_option_its_variable_and_its_default_and_cuts_nothing(forked, of, module, columns):
    done = forked.run("-m", *module, "--help-all", env=os.environ | {"COLUMNS": str(columns)})
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert "\u2026" not in done.stdout
    words, text = done.stdout.split(), " ".join(done.stdout.split())
    for field in options_of(of):
        assert field.variable in words
        for flag in field.flags:
            assert flag in [word.rstrip(",") for word in words]
        if field.default:
            assert f"[default: {field.default}]" in text
    known = {field.variable for field in options_of(of)}
    assert {word for word in words if word.startswith("OSMOSIS_")} == known


def test_the_gateways_help_imports_nothing_heavy():
    done = run("-X", "importtime", "-m", "osmosis_gateway", "--help")
    imported = set(re.findall(r"\|\s+([\w.]+)\s*$", done.stderr, re.M))
    assert "typer" in imported
    assert not imported & {"grpc", "fastapi", "numpy", "pydantic", "aiohttp", "uvicorn"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "more", "named"),
    [
        ((), {"TLS_CERT": "x.pem"}, "OSMOSIS_ROLLOUT_SERVER_TLS_CERT and --tls-key go together"),
        ((), {"TLS_CERT": "x.pem", "TLS_KEY": "y"}, "OSMOSIS_ROLLOUT_SERVER_TLS_CERT, OSMOSIS_ROLLOUT_SERVER_TLS_KEY"),
        ((), {"TRAINER_CA": "x.pem"}, "OSMOSIS_ROLLOUT_SERVER_TRAINER_CA"),
        ((), {"HOST": "0.0.0.0"}, "OSMOSIS_ROLLOUT_SERVER_HOST 0.0.0.0 is not loopback"),
        ((), {"ALLOW_TARGET": "10.0.0.0/99"}, "OSMOSIS_ROLLOUT_SERVER_ALLOW_TARGET"),
        ((), {"CONNECT": "10.0.0.1:1", "CONNECT_TOKEN": "s"}, "OSMOSIS_ROLLOUT_SERVER_CONNECT 10.0.0.1:1"),
        (("-p", "0"), {"NO_HTTP": "1"}, "OSMOSIS_ROLLOUT_SERVER_NO_HTTP does not go with --http-port"),
        ((), {"NO_JOURNAL": "1", "STATE_DIR": "x"}, "OSMOSIS_ROLLOUT_SERVER_NO_JOURNAL does not go with"),
        ((), {"STATE_DIR": "/dev/null"}, "OSMOSIS_ROLLOUT_SERVER_STATE_DIR chooses another"),
        (("--host", "0.0.0.0"), {}, "--host 0.0.0.0 is not loopback"),
    ],
)
def test_what_is_wrong_together_is_named_by_where_it_came_from(forked, tmp_path, arguments, more, named):
    variables = {f"OSMOSIS_ROLLOUT_SERVER_{name}": text for name, text in more.items()}
    done = forked.run(
        "-m",
        "osmosis_grpc.serve",
        "-m",
        CALCULATOR,
        "--grpc-port",
        "0",
        *arguments,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_unknown_variables_are_named_with_the_nearest(tmp_path):
    (tmp_path / ".env").write_text("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRYS=1\nOTHER=1\n")
    env = {"OSMOSIS_ROLLOUT_SERVER_TOKN": "a-secret", "OSMOSIS_ROLLOUT_SERVER_STATE_DIR": ":memory:"}
    for module in (("osmosis_grpc.serve", "-m", "nowhere:agent"), ("osmosis_gateway",)):
        done = run("-m", *module, cwd=tmp_path, env={**os.environ, **env})
        assert done.returncode == 2
        for unknown, nearest in (("SERVER_TOKN", "SERVER_TOKEN"), ("CLIENT_MAX_RETRYS", "CLIENT_MAX_RETRIES")):
            text = f"OSMOSIS_ROLLOUT_{unknown} is unknown, and ignored: is OSMOSIS_ROLLOUT_{nearest} meant?"
            assert text in done.stderr
        assert done.stderr.count("is unknown") == 2
        assert "a-secret" not in done.stderr


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ("SERVER_GRPCPORT", "SERVER_GRPC_PORT"),
        ("SERVER_PORT", "SERVER_GRPC_PORT"),
        ("SERVR_TOKEN", "SERVER_TOKEN"),
        ("SERVER_MAX_RETRIES", "CLIENT_MAX_RETRIES"),
        ("CLIENT_TOKN", "CLIENT_TOKEN"),
        ("SERVER_XYZZY", ""),
    ],
)
def test_the_nearest_name_goes_by_what_follows_the_prefix(monkeypatch, unknown, nearest):
    monkeypatch.setenv(f"OSMOSIS_ROLLOUT_{unknown}", "x")
    found = dict(unknown_variables())
    assert found == {f"OSMOSIS_ROLLOUT_{unknown}": f"OSMOSIS_ROLLOUT_{nearest}" if nearest else ""}


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ("OSMOSIS_ROLOUT_SERVER_GRPC_PORT", "SERVER_GRPC_PORT"),
        ("OSMOSIS_SERVER_GRPC_PORT", "SERVER_GRPC_PORT"),
        ("OSMOSIS_ROLLOUTS_CLIENT_TOKEN", "CLIENT_TOKEN"),
        ("OSMOSIS_SERVER_TOKN", "SERVER_TOKEN"),
    ],
)
def test_a_misspelt_prefix_is_named_with_the_nearest(monkeypatch, unknown, nearest):
    monkeypatch.setenv(unknown, "x")
    assert dict(unknown_variables()) == {unknown: f"OSMOSIS_ROLLOUT_{nearest}"}


@pytest.mark.parametrize(
    "name",
    ["OSMOSIS_API_KEY", "OSMOSIS_TOKEN", "OSMOSIS_LOG_LEVEL", "OSMOSIS_FAILPOINT", "OSMOSIS_SERVER_URL", "OSMOSIS_"],
)
def test_variables_of_other_projects_are_left_alone(monkeypatch, name):
    monkeypatch.setenv(name, "x")
    assert dict(unknown_variables()) == {}


def test_the_page_of_settings_has_each_variable_once():
    page = (ROOT / "docs" / "settings.md").read_text()
    for field in OPTIONS.values():
        assert page.count(f"`{field.variable}`") == 1
    assert "FAILPOINT" not in page


# Effects, in real processes that are given variables only.


class Process:
    """A command that only variables configure; its ready record, and what it says until it ends."""

    def __init__(self, module, folder, **variables):
        env = {**os.environ, **{f"OSMOSIS_ROLLOUT_{name}": text for name, text in variables.items()}}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=folder,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    async def __aenter__(self):
        line = await asyncio.to_thread(self.process.stdout.readline)
        assert line, self.process.stderr.read()
        self.ready = json.loads(line)
        return self

    async def __aexit__(self, *exc):
        if self.process.poll() is None:
            self.process.kill()
        await asyncio.to_thread(self.process.communicate)

    async def stopped(self):
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.communicate, timeout=30)


SMALL = {
    "SERVER_MODULE": CALCULATOR,
    "SERVER_GRPC_PORT": "0",
    "SERVER_NO_HTTP": "true",
    "SERVER_NO_JOURNAL": "true",
    "SERVER_JSON_RECORDS": "true",
}
"""Variables of a server with the calculator, without HTTP and without a journal."""


@pytest.mark.slow
async def test_variables_take_effect_addresses_journal_log_trainers(tmp_path):
    grpc, http = str(quiet_port()), str(quiet_port())
    async with Trainer(
        [], ToolCallingMock(), listen="127.0.0.1:0", security=ServerSecurity(["of-the-trainer"])
    ) as trainer:
        server = Process(
            "osmosis_grpc.serve",
            tmp_path,
            SERVER_MODULE=CALCULATOR,
            SERVER_HOST="127.0.0.2",
            SERVER_GRPC_PORT=grpc,
            SERVER_HTTP_PORT=http,
            SERVER_JSON_RECORDS="true",
            SERVER_STATE_DIR="here",
            SERVER_LOG="traces",
            SERVER_LOG_LEVEL="debug",
            SERVER_DRAIN_TIMEOUT="0.25",
            SERVER_MAX_CONCURRENT_ROLLOUTS="7",
            SERVER_MAX_METADATA_SIZE_BYTES="2048",
            SERVER_ALLOW_TARGET="10.0.0.0/8",
            SERVER_CONNECT=trainer.address,
            SERVER_CONNECT_TOKEN="of-the-trainer",
        )
        async with server, RolloutClient(server.ready["grpc"]) as client:
            assert (server.ready["grpc"], server.ready["http"]) == (f"127.0.0.2:{grpc}", f"127.0.0.2:{http}")
            outcome = await asyncio.wait_for(trainer.rollout(rollout_id="r", messages=QUESTION, label="3"), 20)
            assert outcome.reward == 1.0
            info = await client.info()
            assert (info.capacity.max_concurrent, info.limits.max_metadata_bytes) == (7, 2048)
            await client.init(rollout_id="allowed", callback=Callback(target="10.0.0.1:1"))
            with pytest.raises(InvalidArgument):
                await client.init(rollout_id="refused", callback=Callback(target="11.0.0.1:1"))
            out, err = await server.stopped()
    assert '"event": "draining", "limit": 0.25' in out
    assert '"logger": "uvicorn.error"' in err  # at debug only
    assert (tmp_path / "here").is_dir()
    assert list((tmp_path / "traces").glob("*/events/*.jsonl"))


async def test_variables_take_effect_security(tmp_path):
    files = Files(tmp_path / "tls")
    files.issue("server", "127.0.0.1")
    files.issue("client", common_name="caller")
    server = Process(
        "osmosis_grpc.serve",
        tmp_path,
        **SMALL,
        SERVER_TOKEN="lab=secret",
        SERVER_TLS_CERT=str(tmp_path / "tls" / "server.pem"),
        SERVER_TLS_KEY=str(tmp_path / "tls" / "server.key"),
        SERVER_TLS_CLIENT_CA=str(files.ca),
    )
    async with server:
        assert "http" not in server.ready
        assert not (tmp_path / ".osmosis").exists()
        tls = ClientTls(ca=files.ca, cert=tmp_path / "tls" / "client.pem", key=tmp_path / "tls" / "client.key")
        async with RolloutClient(server.ready["grpc"], token="secret", tls=tls) as client:
            assert (await client.info()).version
        async with RolloutClient(server.ready["grpc"], token="another", tls=tls) as client:
            with pytest.raises(Unauthenticated):
                await client.info()


@pytest.mark.slow
async def test_variables_take_effect_reload_and_switches(tmp_path):
    """--reload in a variable starts one child, and that child does not reload again."""
    server = Process(
        "osmosis_grpc.serve",
        tmp_path,
        **SMALL,
        SERVER_RELOAD="true",
        SERVER_HOST="0.0.0.0",
        SERVER_INSECURE="true",
        SERVER_LOG_LEVEL="error",
    )
    async with server:
        assert server.ready["grpc"].startswith("0.0.0.0:")
        assert server.ready["pid"] != server.process.pid
        parent = Path(f"/proc/{server.ready['pid']}/stat").read_text().rpartition(")")[2].split()[1]
        assert parent == str(server.process.pid)
        await server.stopped()


@pytest.mark.slow
async def test_variables_take_effect_gateway(tmp_path):
    http, callback = str(quiet_port()), str(quiet_port())
    gateway = Process(
        "osmosis_gateway",
        tmp_path,
        CLIENT_TARGET="127.0.0.1:1",
        SERVER_HTTP_PORT=http,
        SERVER_CALLBACK_PORT=callback,
        SERVER_HOST="127.0.0.2",
        SERVER_JSON_RECORDS="true",
    )
    async with gateway:
        assert gateway.ready["target"] == "127.0.0.1:1"
        assert gateway.ready["http"] == f"127.0.0.2:{http}"
        assert gateway.ready["callback"].endswith(f":{callback}")
        _, err = await gateway.stopped()
    assert gateway.process.returncode == 0
    assert '"logger": "uvicorn' not in err
