"""docs/pytorch.md: its program trains, is killed, and continues with the same batch."""

import asyncio
import re
import signal
import sys
from dataclasses import replace

import pytest

from tests.docs.pages import Reader, blocks_of
from tests.processes import ROOT
from tests.waiting import until

pytestmark = pytest.mark.adapters
PAGE = ROOT / "docs" / "pytorch.md"
STEP = re.compile(r"^step +(\d+) +reward (\S+) +loss (\S+) .*ratio off (\S+)", re.M)


@pytest.fixture
def page_modules(tmp_path, monkeypatch):
    """The folder of a reader who has saved the files of the page, which can be imported."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("agent", "model", "loss"):
        sys.modules.pop(name, None)


@pytest.mark.timeout(280)
async def test_the_blocks_run_and_a_killed_program_continues_with_the_same_batch(page_modules, tmp_path):
    pytest.importorskip("tensorboard")
    *files, train, again, curves = blocks_of(PAGE)
    assert [block.text.splitlines()[0] for block in (*files, train)][-1] == "# train.py"
    with Reader(tmp_path) as reader:
        for block in files:
            await reader.run(block, timeout=100)
        (tmp_path / "train.py").write_text(train.text.replace("50051", reader.ports["50051"]))
        before = await stopped_at(5, signal.SIGKILL, tmp_path, reader.environment)
        interrupted = await stopped_at(6, signal.SIGINT, tmp_path, reader.environment)
        await reader.run(again, timeout=200)
        after = reader.output[-1]
        await reader.run(curves)
    first, second, third = (
        {int(step): rest for step, *rest in STEP.findall(text)} for text in (before, interrupted, after)
    )
    assert "continue with step 4\n" in interrupted
    assert list(first) == [0, 1, 2, 3, 4, 5]
    assert [first[step][:2] for step in (4, 5)] == [second[step][:2] for step in (4, 5)], "reward and loss are the same"
    assert [*second, *third] == list(range(4, 12)), "an interrupted program saves the step that it has begun"
    assert all(float(off) < 1e-3 for *_, off in [*first.values(), *second.values(), *third.values()])
    rewards = [float(reward) for reward, *_ in third.values()]
    assert rewards[-1] > 0.5 > 0.2 > float(first[0][0])
    assert "test reward" in after
    assert len(list((tmp_path / "runs").iterdir())) == 2


async def stopped_at(step, number, folder, environment):
    """Run train.py until it has printed a step, and send it a signal. Returns what it printed."""
    log = folder / "train.log"
    with log.open("w") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "train.py",
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=file,
            stdin=asyncio.subprocess.DEVNULL,
        )
        try:
            ended = asyncio.create_task(process.wait())
            await until(lambda: f"\nstep {step:2} " in log.read_text() or ended.done(), timeout=150)
            process.send_signal(number)
        finally:
            assert await ended == (-number if number is signal.SIGKILL else 0), log.read_text()
    return log.read_text()


async def test_the_loss_is_the_same_on_both_sides_and_in_parts(page_modules, tmp_path):
    import torch

    from osmosis_grpc.trainer import pad
    from tests.trainer.test_pad import completed, segment

    with Reader(tmp_path) as reader:
        for block in blocks_of(PAGE):
            if block.text.startswith(("# model.py", "# loss.py")):
                await reader.run(block)
    from loss import logprobs_of, loss_of
    from model import load_model

    torch.manual_seed(0)
    model = load_model()
    outcomes = []
    for n, runs in enumerate(((5, 9), (2, 3, 4, 1), (7, 2))):
        made = segment(runs, seed=n)
        sample = replace(completed().samples["main"], segments=(replace(made, ids=made.ids % 99),))
        outcomes.append(completed(f"r{n}", reward=float(n), samples={"main": sample}))
    losses, rows = {}, {}
    for side in ("right", "left"):
        batch = pad(outcomes, advantages=[1.0, -0.5, 0.25], side=side).torch()
        loss, _ = loss_of(model, batch)
        loss.backward()
        losses[side] = float(loss.detach()), float(model.lm_head.weight.grad.norm())
        model.zero_grad()
        assert float(sum(loss_of(model, part)[0].detach() for part in batch.split(2))) == pytest.approx(
            losses[side][0], rel=1e-4
        )
        rows[side] = logprobs_of(model, batch)[batch.loss_mask].detach()
    assert losses["right"] == pytest.approx(losses["left"], rel=1e-4)
    assert torch.allclose(rows["right"], rows["left"], atol=1e-4)
