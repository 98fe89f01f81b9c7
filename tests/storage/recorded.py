"""The journal and the ledger of a release, recorded for later ones to open.

`python -m tests.storage.recorded` writes recorded/VERSION.tar.gz for this version. Once that is released, its file is
never written again. It has a rollout that ended well, one that failed, one whose caller has left, so that its next
attempt is reserved, and one that is open: two of its three chats are answered.
"""

import asyncio
import gzip
import io
import tarfile
import tempfile
from contextlib import aclosing
from pathlib import Path

from osmosis_grpc import __version__
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.server import AgentServer
from osmosis_grpc.storage.backup import copy_ledger, copy_workers
from osmosis_grpc.trainer import ChatResponse, TokenBlock, Trainer

FOLDER = Path(__file__).with_name("recorded")
QUESTION = [{"role": "user", "content": "What is 6 * 7?"}]
TOOL = {"type": "function", "function": {"name": "note", "parameters": {"type": "object", "properties": {}}}}
CHATS = 3
ADDRESS = "127.0.0.1:19183"
"""Where the trainer listens. Its rollouts belong to this address, so later trainers need it, too."""


class Recorded(RolloutAgentLoop):
    """Asks three chats; "failed" raises after the first."""

    name = "recorded"
    replayable = True

    def get_tools(self, request):
        return [TOOL]

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for number in range(CHATS):
            messages.append((await ctx.chat(messages, temperature=0.5)).message)
            messages.append({"role": "user", "content": f"Go on, {number}."})
            ctx.log_event("asked", number=number)
            if ctx.request.rollout_id == "failed":
                raise ValueError("the agent's own error")
        return ctx.complete(messages, reward=0.25)


def tokens(message):
    """Return the two tokens of a message: of a reply those that were sampled."""
    return [int(message["content"].split()[1]), 7] if message["role"] == "assistant" else [10, 11]


class Policy:
    """Answers each chat with two tokens; the last one of "open", and all of "left", only if it may."""

    def __init__(self, *, may_end):
        self.may_end = may_end
        self.asked = []

    async def __call__(self, request):
        self.asked.append((request.rollout_id, request.chat_number))
        held = request.rollout_id == "left" or (request.rollout_id, request.chat_number) == ("open", CHATS)
        if held and not self.may_end:
            await asyncio.Event().wait()
        prompt = [token for message in request.messages for token in tokens(message)]
        return ChatResponse(
            message={"role": "assistant", "content": f"reply {request.chat_number}"},
            prompt_ids=TokenBlock.of(prompt).ids,
            tokens=TokenBlock.of([request.chat_number, 7], [-0.5, -0.25]),
        )


async def asked(policy: Policy, *chat: str | int) -> None:
    """Wait until the policy is asked a chat."""
    while chat not in policy.asked:
        await asyncio.sleep(0.02)  # polled: the policy has no event to wait for


async def record(folder: Path) -> None:
    """Write state/ and ledger.db into a folder."""
    with tempfile.TemporaryDirectory() as name:
        state, ledger, policy = Path(name, "state"), Path(name, "ledger.db"), Policy(may_end=False)
        async with (
            Trainer([], policy, listen=ADDRESS, ledger=ledger) as trainer,
            AgentServer([Recorded()], port=0, connect=[trainer.address], state_dir=state),
        ):
            for rollout_id in ("completed", "failed"):
                await trainer.rollout(rollout_id=rollout_id, messages=QUESTION, label="42", metadata={"task": 1})
            left = asyncio.ensure_future(trainer.rollout(rollout_id="left", messages=QUESTION))
            await asked(policy, "left", 1)
            left.cancel()
            waiting = asyncio.ensure_future(trainer.rollout(rollout_id="open", messages=QUESTION))
            await asked(policy, "open", CHATS)
            async with aclosing(trainer.events("left")) as ended:
                async for _ in ended:
                    pass
            (folder / "state").mkdir()
            await asyncio.to_thread(copy_workers, state, folder / "state", lambda _: lambda *_: None)
            await asyncio.to_thread(copy_ledger, ledger, folder, lambda *_: None)
            waiting.cancel()


def pack(folder: Path) -> bytes:
    """Return the files of a folder as a compressed archive, without names of users and without times."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size, entry.mode = path.stat().st_size, 0o600
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    return gzip.compress(data.getvalue(), mtime=0)


def unpack(release: Path, folder: Path) -> None:
    """Write the files of a release into a folder."""
    with tarfile.open(release) as archive:
        archive.extractall(folder, filter="data")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(record(Path(name)))
        (FOLDER / f"{__version__}.tar.gz").write_bytes(pack(Path(name)))


if __name__ == "__main__":
    main()
