"""Renderers of model families: conversations as exact segments, and what is read from replies."""

import json
import random

import numpy as np
import pytest

from osmosis_grpc.policies import ChatRenderer, FamilyRenderer, FinishReason, TokenPolicy, renderer_of
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest
from osmosis_grpc.rollout import RolloutAgentLoop
from osmosis_grpc.testing import run_rollout
from tests.policies.family_formats import FORMATS
from tests.policies.family_tokenizer import FamilyTokenizer
from tests.policies.scripted_generator import Scripted, generated

pytest.importorskip("renderers")
pytestmark = pytest.mark.adapters
PARAMETERS = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "count": {"type": "integer"},
    },
}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}
QUESTION = [{"role": "user", "content": "What is there?"}]
ARGUMENTS = {"path": "a b", "zip": "12345", "count": 3}
THOUGHT = 'I could call <tool_call>{"name": "look", "arguments": {}}</tool_call> now.'
"""Reasoning that looks like a call."""


class Family:
    """A renderer, its tokenizer and its format."""

    def __init__(self, name):
        self.format = FORMATS[name]
        self.tokenizer = FamilyTokenizer()
        self.renderer = FamilyRenderer(self.tokenizer, family=name)
        self.prompt = self.renderer.prompt_ids(ChatRequest(rollout_id="r", messages=QUESTION, tools=[TOOL])).ids

    def written(self, text="", calls=(), thought="", end=True):
        """The ids of a reply."""
        form = self.format
        said = form.think.replace("@", thought) + text if form.think else text
        whole = said + "".join(form.call(name, arguments) for name, arguments in calls)
        closing = (calls and form.call_end) or form.end
        return self.tokenizer.encode(whole + (closing if end else ""))

    def read(self, ids, tools=(TOOL,), stop=()):
        ids = np.asarray(ids, dtype="<u4")
        return self.renderer.reply(ids, prompt=self.prompt, tools=tools, stop=stop)


@pytest.mark.parametrize("content", ["One turn is left.", [{"type": "text", "text": "One turn is left."}]])
@pytest.mark.parametrize("name", FORMATS)
async def test_no_family_leaves_out_a_late_system_message(name, content):
    """It is in the prompt, as the agent wrote it or folded."""
    tokenizer = FamilyTokenizer()
    generator = Scripted([generated(tokenizer.encode("5" + FORMATS[name].end))])
    late = {"role": "system", "content": content}
    messages = [*QUESTION, {"role": "assistant", "content": "Nothing."}, late, *QUESTION]
    await TokenPolicy(FamilyRenderer(tokenizer, family=name), generator)(ChatRequest(rollout_id="r", messages=messages))
    assert "One turn is left." in tokenizer.decode(generator.asked[0].prompt_ids.tolist(), skip_special_tokens=False)


@pytest.fixture(params=FORMATS)
def family(request):
    return Family(request.param)


class FiveTurns(RolloutAgentLoop):
    """Answers two calls, and asks two further questions."""

    name = "five-turns"

    async def run(self, ctx):
        messages = list(QUESTION)
        for following in ("tool", "tool", "And its colour?", "Go on.", ""):
            reply = await ctx.chat(messages, tools=[TOOL])
            messages.append(reply.message)
            if following == "tool":
                (call,) = reply.message["tool_calls"]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "a box </tool_call>"})
            elif following:
                messages.append({"role": "user", "content": following})
        return ctx.complete(messages, reward=1.0)


def calls_of(reply):
    functions = [call["function"] for call in reply.message.get("tool_calls", ())]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


async def test_a_conversation_of_five_turns_has_the_segments_of_its_family(family):
    """Two calls with their results, an answer, a reply that is cut, and one after it."""
    replies = [
        generated(family.written("" if family.format.calls_alone else "I look.", [("look", ARGUMENTS)], "First.")),
        generated(family.written("", [("look", {"path": "c"})], "Second.")),
        generated(family.written("It is a box.", thought="Third.")),
        generated(family.written("It is", thought="Fourth.", end=False), FinishReason.LENGTH),
        generated(family.written("It is blue.", thought="Fifth.")),
    ]
    sampled = [reply.token_ids for reply in replies]

    generator = Scripted(replies)
    outcome = await run_rollout(FiveTurns(), TokenPolicy(family.renderer, generator), messages=QUESTION)
    sample = outcome.samples["main"]
    assert sample.trainable, outcome.failure
    end = family.tokenizer.encode(family.format.end)
    assert all(set(end) <= set(asked.sampling.stop_token_ids) for asked in generator.asked)
    assert len(sample.segments) == family.format.segments
    trained = np.concatenate([segment.ids[segment.mask().astype(bool)] for segment in sample.segments])
    assert trained.tolist() == np.concatenate(sampled).tolist()
    if family.format.think:
        thoughts = [m.get("reasoning_content", "").strip() for m in sample.messages if m["role"] == "assistant"]
        assert thoughts == ["First.", "Second.", "Third.", "Fourth.", "Fifth."]


def test_a_call_has_its_name_and_its_arguments_and_the_rest_is_text(family):
    text = "" if family.format.calls_alone else "I look."
    reply = family.read(family.written(text, [("look", ARGUMENTS)], "So."))
    assert calls_of(reply) == [("look", ARGUMENTS)]
    assert (reply.message["content"] or "").strip() == text
    assert reply.message.get("reasoning_content", "").strip() == ("So." if family.format.think else "")


def test_a_value_that_may_be_a_text_is_one(family):
    for value in ("true", "1e5", "[1]", "</think>", "<parameter=x>", 'say "yes"'):
        ((_, arguments),) = calls_of(family.read(family.written("", [("look", {"zip": value})], "So.")))
        assert arguments == {"zip": value}


def test_reasoning_is_never_read_for_calls(family):
    if not family.format.think:
        pytest.skip("the family writes no reasoning")
    thought = THOUGHT.replace("<tool_call>", "").replace("</tool_call>", "") + family.format.call("look", {"path": "x"})
    reply = family.read(family.written("Done.", thought=thought))
    assert calls_of(reply) == []
    assert reply.message["content"].strip() == "Done."


def test_a_call_without_an_end_is_no_call_and_stays_text(family):
    ids = family.written("", [("look", ARGUMENTS)], "So.", end=False)
    cuts = [ids[:-cut] for cut in range(2, 50)]
    replies = [family.read(cut) for cut in cuts if "look" in family.tokenizer.decode(cut)]
    assert all(arguments == ARGUMENTS for reply in replies for _, arguments in calls_of(reply))
    unclosed = [reply for reply in replies if not calls_of(reply)]
    assert unclosed
    for reply in unclosed:
        assert "look" in reply.message["content"]
        assert reply.unread or family.format.calls_alone


def test_texts_that_look_like_calls_in_a_prompt_are_none(family):
    shown = family.format.call("look", {"path": "x"})
    asked = [{"role": "user", "content": f"What does {shown} mean?"}]
    prompt = family.renderer.prompt_ids(ChatRequest(rollout_id="r", messages=asked, tools=[TOOL])).ids
    ids = np.asarray(family.written("It calls a tool.", thought="So."), dtype="<u4")
    reply = family.renderer.reply(ids, prompt=prompt, tools=[TOOL])
    assert calls_of(reply) == []
    assert reply.message["content"].strip() == "It calls a tool."


def test_without_tools_a_call_is_text(family):
    reply = family.read(family.written("", [("look", ARGUMENTS)], "So."), tools=())
    assert "tool_calls" not in reply.message
    assert "look" in reply.message["content"]


def test_a_stop_text_ends_the_reply(family):
    reply = family.read(family.written("one STOP two", thought="So."), stop=["STOP"])
    assert (reply.message["content"].strip(), reply.stop) == ("one", "STOP")


def test_other_tools_are_no_continuation(family):
    other = {"type": "function", "function": {"name": "other", "description": "", "parameters": {"type": "object"}}}
    asked = ChatRequest(rollout_id="r", messages=QUESTION, tools=[other])
    if np.array_equal(family.renderer.prompt_ids(asked).ids, family.prompt):
        pytest.skip("the prompts of the family have no tools")
    reply = family.written("I see.", thought="So.")
    messages = [*QUESTION, {"role": "assistant", "content": "I see."}, {"role": "user", "content": "And?"}]
    known = np.asarray([*family.prompt, *reply], dtype="<u4")
    given = {"parent_chat": 1, "prefix_len": 2, "known_ids": known, "known_reply": len(reply)}
    prompt = family.renderer.prompt_ids(ChatRequest(rollout_id="r", messages=messages, tools=[other], **given))
    assert prompt.drifted


def test_no_text_is_lost_and_no_call_is_invented():
    """Replies made of pieces of the formats."""
    pieces = ["I look.", "\n", "look", '{"path": "x"}', "</think>", "<think>", "42"]
    for name in FORMATS:
        family, chosen = Family(name), random.Random(name)
        whole = family.tokenizer.encode(family.format.call("look", {"path": "marked"}))
        parts = [*map(family.tokenizer.encode, pieces), whole, whole[: len(whole) // 2], whole[len(whole) // 2 :]]
        for _ in range(600):
            ids = [number for part in chosen.choices(parts, k=chosen.randint(1, 8)) for number in part]
            reply = family.read(ids)
            said = family.tokenizer.decode(ids)
            shown = json.dumps([reply.message], ensure_ascii=False)
            assert len(calls_of(reply)) <= said.count("look"), said
            for word in ("I look.", "42", "marked"):
                assert shown.count(word) >= min(1, said.count(word)), (name, said, reply.message)


@pytest.mark.parametrize(("given", "names"), [({"family": "qwen9"}, "qwen9"), ({"model": "me/mine"}, "me/mine")])
def test_an_unknown_family_is_named(given, names):
    with pytest.raises(ValueError, match=names):
        FamilyRenderer(FamilyTokenizer(), **given)


def test_a_variable_that_the_family_lacks_is_refused():
    with pytest.raises(ValueError, match="colour"):
        FamilyRenderer(FamilyTokenizer(), family="qwen3", template_params={"colour": "red"})


def test_the_renderer_is_chosen_by_the_name_of_the_model(caplog):
    caplog.set_level("INFO", "osmosis_grpc")
    assert renderer_of(FamilyTokenizer("Qwen/Qwen3-8B")).family == "qwen3"
    assert renderer_of(FamilyTokenizer(), "zai-org/GLM-5").family == "glm-5"
    assert "qwen3" in caplog.text
    tokenizer = FamilyTokenizer("me/mine")
    tokenizer.apply_chat_template = lambda messages, **options: "text"
    assert isinstance(renderer_of(tokenizer), ChatRenderer)
    assert "me/mine" in caplog.text


def test_messages_that_a_renderer_refuses_are_an_error_that_names_it():
    family = Family("qwen3")
    with pytest.raises(InvalidArgument, match="qwen3"):
        family.renderer.prompt_ids(ChatRequest(rollout_id="r", messages=[{"content": "no role"}]))
