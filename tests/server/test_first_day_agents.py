"""What a trainer and an operator learn of an agent that raises or hangs: over both transports, and after a restart."""

import pytest

from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.processes import server_process

AGENT = """
from osmosis_grpc.rollout import RolloutAgentLoop

KEYS = {"other": "sk-1234"}

class Agent(RolloutAgentLoop):
    name = "agent"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        await ctx.chat(list(ctx.request.messages))
        return self.weather("weather_api_key")  # calls

    def weather(self, key):
        return KEYS[key]  # raises
"""
QUESTION = [{"role": "user", "content": "hello"}]
COMMAND = ("-m", "agents:Agent", "--state-dir", "state")


def line(mark):
    return next(n for n, text in enumerate(AGENT.splitlines(), 1) if text.endswith(f"# {mark}"))


def check(failure):
    assert failure.message == "KeyError: 'weather_api_key'"
    assert (failure.file, failure.line) == ("agents.py", line("raises"))
    assert [(frame.file, frame.line, frame.function, frame.code) for frame in failure.frames] == [
        ("agents.py", line("calls"), "Agent.run", 'return self.weather("weather_api_key")  # calls'),
        ("agents.py", line("raises"), "Agent.weather", "return KEYS[key]  # raises"),
    ]
    assert "sk-1234" not in repr(failure)


@pytest.mark.slow
async def test_a_failure_has_file_line_and_frames_and_the_journal_keeps_them(tmp_path):
    (tmp_path / "agents.py").write_text(AGENT)
    with server_process(*COMMAND, cwd=tmp_path) as (process, address):
        async with CallbackTrainer(EchoPolicy()) as trainer, RolloutClient(address) as client:
            await client.init(rollout_id="r1", messages=QUESTION, callback=trainer.callback())
            check((await trainer.outcome("r1", timeout=20)).failure)
            check((await client.get("r1")).outcome.failure)
        async with Trainer([address], EchoPolicy()) as trainer:
            check((await trainer.rollout(rollout_id="r2", messages=QUESTION)).failure)
        process.kill()
        log = process.communicate()[1]
    where = f"agents.py:{line('raises')} in Agent.weather"
    assert f"the agent of rollout r1 raised at {where}" in log
    with server_process(*COMMAND, cwd=tmp_path) as (_, address):
        async with RolloutClient(address) as client:
            for rollout_id in ("r1", "r2"):
                check((await client.get(rollout_id)).outcome.failure)


async def limit_of(*options, cwd, **environment):
    with server_process(*COMMAND, *options, cwd=cwd, **environment) as (_, address):
        async with RolloutClient(address) as client:
            return (await client.info()).limits.agent_timeout


@pytest.mark.slow
async def test_the_default_limit_is_an_option_and_is_told(tmp_path, monkeypatch):
    (tmp_path / "agents.py").write_text(AGENT)
    assert await limit_of(cwd=tmp_path) == 1800
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_AGENT_TIMEOUT_SECONDS", "90")
    assert await limit_of(cwd=tmp_path) == 90
    assert await limit_of("--agent-timeout", "77", cwd=tmp_path) == 77


@pytest.mark.parametrize("bad", ["0", "nan"])
def test_a_bad_limit_is_refused(forked, tmp_path, bad):
    (tmp_path / "agents.py").write_text(AGENT)
    done = forked.run("-m", "osmosis_grpc.serve", *COMMAND, "--agent-timeout", bad, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("serve: --agent-timeout: ")
    assert len(done.stderr.splitlines()) == 1
