"""The trainers of examples/trainers_from_stubs run with stubs that are made from proto/ alone."""

import asyncio
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_grpc.protocol.types.events import ChatRequested
from tests.attach.cutting_proxy import CuttingProxy
from tests.processes import ROOT
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
TRAINERS = ROOT / "examples" / "trainers_from_stubs"
COMPLETED = "OUTCOME_STATUS_COMPLETED reward 1.0\n25 tokens, mask runs [15, 3, 5, 2] and 5 logprobs\n"
SLOW = """
import asyncio, sys, attach_trainer
fast = attach_trainer.sample_reply

sampled = []

async def slow(*arguments):
    sampled.append(1)
    await asyncio.sleep(0.5)
    return await fast(*arguments)

attach_trainer.sample_reply = slow
asyncio.run(attach_trainer.main(sys.argv[1], 20))
print("sampled", len(sampled))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the trainers and their stubs."""
    folder = tmp_path_factory.mktemp("trainers")
    python = runpy.run_path(str(ROOT / "scripts" / "generate.py"))["tools_python"]()
    protos = [str(path) for path in (ROOT / "proto").rglob("*.proto")]
    out = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run([python, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", *out, *protos], check=True)
    for path in TRAINERS.glob("*.py"):
        shutil.copy(path, folder)
    return folder


async def start(folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=folder, stdout=pipe, stderr=pipe)


async def test_the_callback_trainer_runs_a_rollout(serve, folder):
    server = await serve()
    out, err = await (await start(folder, "callback_trainer.py", server.address)).communicate()
    assert out.decode() == "OUTCOME_STATUS_COMPLETED\nmain 3 tokens, mask runs [1, 2]\n", err.decode()


async def test_the_attach_trainer_runs_rollouts(serve, folder):
    server = await serve()
    out, err = await (await start(folder, "attach_trainer.py", server.address)).communicate()
    assert (out.decode(), err.decode()) == (4 * COMPLETED, "")


async def test_the_attach_trainer_survives_breaks_and_samples_each_chat_once(serve, folder):
    server, asked = await serve(), []
    server.engine.log.add_sink(asked.append, ChatRequested)
    async with CuttingProxy(server.address) as proxy:
        trainer = await start(folder, "-c", SLOW, proxy.address)
        for chats in (5, 25):  # first and second chats of the twenty rollouts are open
            await until(lambda chats=chats: len(asked) >= chats)
            assert proxy.cut() == 1
        out, err = await trainer.communicate()
    assert (out.decode(), err.decode()) == (20 * COMPLETED + "sampled 40\n", "")
