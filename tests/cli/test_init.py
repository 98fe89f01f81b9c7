"""C6: init writes a project that passes validate --run, test, ruff and mypy."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from osmosis_grpc.agent.loader import LoadError, load_object
from osmosis_grpc.cli.init import run_init

FILES = ["README.md", "agent.py", "data.jsonl", "pyproject.toml", "rewards.py"]
TEMPLATES = ["minimal", "tools", pytest.param("openai", marks=pytest.mark.adapters)]


@pytest.fixture
def init(forked, tmp_path):
    """Runs `init ARGUMENTS` in an empty folder."""

    def command(*arguments):
        return forked.run("-m", "osmosis_grpc", "init", *arguments, cwd=tmp_path)

    return command


def test_the_printed_commands_run(init, forked, tmp_path):
    done = init("my-agent")
    assert (done.returncode, done.stderr) == (0, "")
    said, following, *commands = done.stdout.splitlines()
    assert (said, following) == (f"my-agent has {', '.join(FILES)}", "next:")
    assert commands[0].endswith(" validate --run -m agent:agent_loop")
    assert commands[0].startswith("  cd my-agent && ")
    assert sorted(os.listdir(tmp_path / "my-agent")) == FILES
    test = commands[1].split(" test ")[1].split()
    tried = forked.run("-m", "osmosis_grpc", "test", *test, cwd=tmp_path / "my-agent")
    assert (tried.returncode, tried.stderr) == (0, "")
    assert "3 of 3 rows COMPLETED" in tried.stdout


def test_a_template_that_needs_a_package_names_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_init("mine", "openai", force=False, json=False) == 0
    said = capsys.readouterr().out
    assert "next:\n  cd mine && pip install openai\n" in said
    readme = Path("mine/README.md").read_text()
    assert "\n    pip install openai\n" in readme
    assert "{{" not in readme
    monkeypatch.setitem(sys.modules, "openai", None)
    Path("needs_openai.py").write_text("import openai\n")
    with pytest.raises(LoadError, match=r"needs the extra 'openai': pip install .*; it is imported at .*openai\.py:1$"):
        load_object("needs_openai:agent_loop")


def test_the_names_are_those_of_the_folder(init, tmp_path):
    done = init("deep/er/my.agent-1", "--template", "minimal", "--json")
    record = json.loads(done.stdout)
    assert (record["event"], record["name"], record["template"]) == ("made", "my.agent-1", "minimal")
    assert record["files"] == FILES
    folder = tmp_path / "deep/er/my.agent-1"
    assert 'name = "my.agent-1"' in (folder / "agent.py").read_text()
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["dependencies"]) == ("my.agent-1", ["osmosis-grpc[server]"])
    assert not [path for path in folder.iterdir() if "{{" in path.read_text()]


def test_a_folder_that_is_not_empty_is_refused(init, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "agent.py").write_text("mine")
    done = init("mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"init: the folder mine is not empty; name another one, or overwrite {', '.join(FILES)} in it with --force\n"
    )
    assert os.listdir(tmp_path / "mine") == ["agent.py"]
    assert init("mine", "--force").returncode == 0
    assert "RolloutAgentLoop" in (tmp_path / "mine" / "agent.py").read_text()


def test_a_project_of_an_environment_names_it_in_one_file(init, tmp_path):
    done = init("mine", "--env", 'gymnasium:tests.environments.game:Game,tasks=2,note="it\'s"', "--json")
    record = json.loads(done.stdout)
    spec = "gymnasium:tests.environments.game:Game,note=it's,tasks=2"
    assert (record["env"], record["files"]) == (spec, ["README.md", "pyproject.toml", "server.toml", "train.py"])
    folder = tmp_path / "mine"
    assert tomllib.loads((folder / "server.toml").read_text()) == {"server": {"env": [spec]}}
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == ["osmosis-grpc[server,gymnasium]"]
    readme = (folder / "README.md").read_text()
    assert "{{" not in readme
    for part, command in zip(
        ("osmosis-grpc[", "test --env ", "serve --config ", "train.py"), record["commands"], strict=True
    ):
        assert command[command.index(part) :] in readme


WRONG = {
    "name": (["a b"], "init: 'a b' cannot name a project; use letters, digits and - _ . between them\n"),
    "no name": ([""], "init: '' cannot name a project"),
    "escape": (["\x1b[2J"], "init: '\\\\x1b[2J' cannot name a project"),
    "template": (
        ["x", "--template", "y"],
        "init: --template: there is no template y; there are minimal, tools, openai\n",
    ),
    "environment": (["x", "--env", "y"], "init: --env: 'y' is not KIND:NAME"),
    "kind": (["x", "--env", "y:z"], "init: --env: there is no kind y; there are reasoning-gym, "),
    "file": (["file"], "init: [Errno 20] Not a directory: 'file'; name another folder\n"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_init_is_one_line_and_code_2(init, tmp_path, arguments, said):
    (tmp_path / "file").touch()
    done = init(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert os.listdir(tmp_path) == ["file"]


@pytest.fixture(scope="module")
def mypy_cache(tmp_path_factory):
    """A folder in which mypy keeps its results for all templates."""
    return tmp_path_factory.mktemp("mypy")


def checks(mypy_cache):
    tools = Path(sys.executable).parent
    return (
        [tools / "ruff", "check", "--no-cache"],
        [tools / "ruff", "format", "--check", "--no-cache"],
        [tools / "mypy", "--cache-dir", mypy_cache, "."],
    )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_project_of_an_environment_passes_its_checks(init, tmp_path, mypy_cache):
    assert init("project", "--env", "reasoning-gym:leg_counting").returncode == 0
    for command in checks(mypy_cache):
        done = subprocess.run(
            command, cwd=tmp_path / "project", capture_output=True, text=True, timeout=250, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_project_passes_its_checks(init, tmp_path, mypy_cache, template):
    if template == "openai":
        pytest.importorskip("openai")
    assert init("project", "--template", template).returncode == 0
    ours = [sys.executable, "-W", "error", "-m", "osmosis_grpc"]
    test = [*ours, "test", "-m", "agent:agent_loop", "-d", "data.jsonl", "--model"]
    for command in (
        [*ours, "validate", "--run", "-m", "agent:agent_loop"],
        [*test, "mock:tools"],
        [*test, "mock:echo"],
        *checks(mypy_cache),
    ):
        done = subprocess.run(
            command, cwd=tmp_path / "project", capture_output=True, text=True, timeout=250, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
