"""The page of tokens, over HTTP: the windows, the segments with their drift, and the values of the trainer."""

import asyncio
from contextlib import aclosing

import numpy as np
import pytest

from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.policies.template_tokenizer import TokenTexts
from osmosis_grpc.protocol.types import Annotation, ChatResponse, SegmentAnnotation, TokenBlock, VersionSpan, events
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.server import AgentServer
from tests.callback_trainer import CallbackTrainer
from tests.policies.model_folder import write_tokenizer
from tests.viewer.conftest import CANARY, Traveller, browsing, calling
from tests.waiting import until

LONG = 16_384
"""The tokens of each of the two replies of the rollout `long`."""
TRAINER = [-0.5, -0.25, -2.0, -1.0]
ENTROPIES = [0.5, 0.25, 2.0, 1.0]


def message(request, last):
    """The reply: a call of the tool, or its end."""
    if last:
        return {"role": "assistant", "content": "It is sunny."}
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


async def policy(request):
    """Answer two chats: `straight` continues its tokens, `drifting` changes one, `bare` has none, `long` has many."""
    last = request.chat_number == 2
    reply = message(request, last)
    match request.rollout_id:
        case "bare":
            return ChatResponse(message=reply)
        case "long":
            chance = np.random.default_rng(request.chat_number)
            before = [7, *range(LONG)] if last else []
            tokens = TokenBlock.of(np.arange(LONG), -chance.exponential(1.0, LONG))
            return ChatResponse(message=reply, prompt_ids=TokenBlock.of([*before, 7]).ids, tokens=tokens)
        case "straight" | "drifting":
            second = 11 if request.rollout_id == "straight" else 99
            prompt = [1, 2, 3, 10, second, 12, 50] if last else [1, 2, 3]
            tokens = TokenBlock.of([20], [-4.0]) if last else TokenBlock.of([10, 11, 12], [-0.05, -0.75, -1.5])
            spans = (VersionSpan("v2", 1),) if last else (VersionSpan("v0", 1), VersionSpan("v1", 2))
            return ChatResponse(message=reply, prompt_ids=TokenBlock.of(prompt).ids, tokens=tokens, versions=spans)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The state folder of a server that ran the rollouts. One is annotated."""
    path = tmp_path_factory.mktemp("tokens")

    async def run():
        security = ServerSecurity(admin_tokens=CANARY)
        async with (
            AgentServer([Traveller()], port=0, state_dir=path, security=security) as server,
            CallbackTrainer(policy) as trainer,
            calling(server) as client,
        ):
            for name in ("straight", "drifting", "bare", "long"):
                messages = [{"role": "user", "content": "How is it?"}]
                await client.init(rollout_id=name, messages=messages, callback=trainer.callback())
                await trainer.outcome(name)
            values = SegmentAnnotation(logprobs=TRAINER, entropies=ENTROPIES)
            await client.annotate("straight", Annotation(segments=(values,)))

    asyncio.run(run())
    return path


def columns(content):
    """Return the numbers of a window's head and its columns by name, read as docs/viewer.md writes them."""
    first, count, bits, total = np.frombuffer(content, "<u4", 4)
    names = ["ids", "logprobs", *(name for bit, name in ((1, "trainer"), (2, "entropies")) if bits & bit)]
    assert len(content) == 16 + 4 * count * len(names)
    kinds = ["<u4", *["<f4"] * (len(names) - 1)]
    found = {
        name: np.frombuffer(content, kind, count, 16 + 4 * count * index)
        for index, (name, kind) in enumerate(zip(names, kinds, strict=True))
    }
    return (int(first), int(count), int(total)), found


async def recorded(folder, rollout_id):
    """Return the replies of the journal."""
    async with FolderSource(folder) as source, aclosing(source.events(rollout_id)) as trail:
        return [event.kind.response async for event in trail if isinstance(event.kind, events.ChatAnswered)]


async def test_the_windows_have_the_values_of_the_journal(viewer, folder):
    one, two = await recorded(folder, "long")
    ids = np.concatenate([[7], one.tokens.ids, [7], two.tokens.ids])
    gap = [np.float32("nan")]
    logprobs = np.concatenate([gap, one.tokens.logprobs, gap, two.tokens.logprobs])
    parts = []
    for first in range(0, len(ids), 2048):
        answer = await viewer.get(f"/rollout/tokens.bin?id=long&first={first}")
        assert len(answer.content) <= 40_000
        head, found = columns(answer.content)
        assert head == (first, len(found["ids"]), len(ids))
        parts.append(found)
    assert np.array_equal(np.concatenate([part["ids"] for part in parts]), ids)
    assert np.array_equal(np.concatenate([part["logprobs"] for part in parts]), logprobs, equal_nan=True)
    page = await viewer.get("/rollout/tokens?id=long")
    assert "32,770</b> tokens" in page.text
    assert len(page.content) < 20_000  # the tokens are not in the page


async def test_runs_have_kind_turn_and_version(viewer):
    about = (await viewer.get("/rollout/tokens.json?id=straight")).json()
    assert about["runs"] == [
        [0, "prompt", 1, ""],
        [3, "reply", 1, "v0"],
        [4, "reply", 1, "v1"],
        [6, "tool", 2, ""],
        [7, "reply", 2, "v2"],
    ]
    assert about["strip"]["step"] == 1
    assert about["strip"]["mean"][:4] == [None, None, None, -0.05]
    assert [each["drift"] for each in about["segments"]] == [None]


async def test_drift_shows_the_first_index_that_differs(viewer):
    first, second = (await viewer.get("/rollout/tokens.json?id=drifting")).json()["segments"]
    assert first["drift"] is None
    assert (second["start"], second["drift"], second["was"], second["is"]) == (6, 4, 11, 99)
    page = (await viewer.get("/rollout/tokens?id=drifting")).text
    assert "drift at index 4" in page
    assert "11 became 99" in page
    assert 'href="#token=10"' in page
    assert "drift at" not in (await viewer.get("/rollout/tokens?id=straight")).text


async def test_the_values_of_the_trainer_come_from_annotations(viewer):
    _, found = columns((await viewer.get("/rollout/tokens.bin?id=straight")).content)
    sampled = [3, 4, 5, 7]
    assert found["trainer"][sampled].tolist() == TRAINER
    assert found["entropies"][sampled].tolist() == ENTROPIES
    assert np.isnan(np.delete(found["trainer"], sampled)).all()
    assert 'value="entropy"' in (await viewer.get("/rollout/tokens?id=straight")).text
    _, without = columns((await viewer.get("/rollout/tokens.bin?id=drifting")).content)
    assert set(without) == {"ids", "logprobs"}
    assert 'value="entropy"' not in (await viewer.get("/rollout/tokens?id=drifting")).text


async def test_a_rollout_without_tokens_says_so(viewer):
    page = await viewer.get("/rollout/tokens?id=bare")
    assert page.status_code == 200
    assert "has no tokens: chat 1: the reply came without token ids" in page.text
    assert (await viewer.get("/rollout/tokens.bin?id=bare")).status_code == 400


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("id=straight&first=8", 400, "first: 8 is not the index of a token; sample main has 8"),
        ("id=straight&first=-1", 400, "first: -1 is not the index"),
        ("id=straight&count=2049", 400, "count: 2049 is not from 1 to 2048"),
        ("id=straight&count=0", 400, "count: 0 is not from"),
        ("id=straight&first=x", 422, "first"),
        ("id=straight&sample=judge", 404, "has no sample judge; it has main"),
        ("id=nothing", 404, "there is no rollout"),
        ("", 422, "id"),
    ],
)
async def test_a_wrong_parameter_is_named(viewer, query, status, words):
    answer = await viewer.get(f"/rollout/tokens.bin?{query}")
    assert answer.status_code == status
    assert words in answer.text


async def test_the_texts_of_tokens_come_from_the_tokenizer(viewer, folder, tmp_path):
    pytest.importorskip("tokenizers")
    texts = TokenTexts(write_tokenizer(tmp_path / "model"))
    async with browsing(FolderSource(folder), texts=texts) as decoding:
        answer = (await decoding.get("/rollout/tokens-text.json?id=straight")).json()
        page = (await decoding.get("/rollout/tokens?id=straight")).text
        end = (await decoding.get("/rollout/tokens-text.json?id=long&first=9000&count=2")).json()
        assert (await decoding.get("/rollout/tokens-text.json?id=straight&first=8")).status_code == 400
    assert answer[0] == "<|im_end|>"  # the id 1
    assert answer[3:6] == [")", "*", "+"]  # the ids 10 to 12
    assert end == ["", ""]  # ids that the tokenizer does not know
    assert "tokens-text.json" in page
    assert "tokens-text.json" not in (await viewer.get("/rollout/tokens?id=straight")).text
    without = await viewer.get("/rollout/tokens-text.json?id=straight")
    assert without.status_code == 404
    assert "--tokenizer FOLDER" in without.text


async def test_the_tokens_of_a_running_rollout_are_those_of_its_answered_chats(tmp_path):
    waits, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(request):
        if request.chat_number == 2:
            waits.set()
            await goes_on.wait()
        return await policy(request)

    security = ServerSecurity(admin_tokens=CANARY)
    async with (
        AgentServer([Traveller()], port=0, state_dir=tmp_path, security=security) as server,
        CallbackTrainer(slow) as trainer,
        calling(server) as client,
        browsing(FolderSource(tmp_path)) as viewer,
    ):
        messages = [{"role": "user", "content": "How is it?"}]
        await client.init(rollout_id="straight", messages=messages, callback=trainer.callback())
        await waits.wait()

        async def committed():
            """Return the window as soon as the journal has the first reply."""
            answer = await viewer.get("/rollout/tokens.bin?id=straight")
            return answer.content if answer.status_code == 200 else None

        _, found = columns(await until(committed))
        assert found["ids"].tolist() == [1, 2, 3, 10, 11, 12]
        assert "/rollout/tokens/stream?" in (await viewer.get("/rollout/tokens?id=straight")).text
        goes_on.set()
        await trainer.outcome("straight")
