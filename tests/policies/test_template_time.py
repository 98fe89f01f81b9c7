"""A template that writes the current time writes the time of a rollout's first prompt in all its prompts."""

from datetime import datetime, timedelta

import numpy as np
import pytest

from osmosis_grpc.policies import ChatRenderer, TemplateTokenizer
from osmosis_grpc.protocol.types import ChatRequest
from tests.policies.model_folder import CHATML, write_tokenizer

pytestmark = pytest.mark.adapters
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

ASKED = [{"role": "user", "content": "2 + 3?"}]
LATER = [*ASKED, {"role": "assistant", "content": "5"}, {"role": "user", "content": "And 3 + 4?"}]
MOMENT = "Now: {{ strftime_now('%H:%M:%S.%f') }}\n" + CHATML
"""A template whose text differs at each moment, as one with the date does after midnight."""
DAY = "Today: {{ strftime_now('%d %b %Y') }}\n" + CHATML


def template_tokenizer(folder, template):
    return TemplateTokenizer(folder, chat_template=template)


def transformers_tokenizer(folder, template):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    tokenizer.chat_template = template
    return tokenizer


def named_templates(folder, template):
    tokenizer = transformers_tokenizer(folder, template)
    tokenizer.chat_template = {"default": template, "tool_use": template}
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("model"))


def first(rollout_id="r", attempt=1):
    return ChatRequest(rollout_id=rollout_id, attempt=attempt, messages=ASKED)


def continued(tokenizer, prompt, rollout_id="r", attempt=1):
    """The chat after the reply "5" to a prompt."""
    known = np.concatenate([prompt.ids, np.asarray(tokenizer.encode("5<|im_end|>"), dtype="<u4")])
    return ChatRequest(
        rollout_id=rollout_id, attempt=attempt, messages=LATER, parent_chat=1, prefix_len=2, known_ids=known
    )


@pytest.mark.parametrize("made", [template_tokenizer, transformers_tokenizer, named_templates])
def test_later_prompts_of_a_rollout_have_the_time_of_its_first_prompt(folder, made):
    tokenizer = made(folder, MOMENT)
    renderer = ChatRenderer(tokenizer)
    prompt = renderer.prompt_ids(first())
    request = continued(tokenizer, prompt)
    later = renderer.prompt_ids(request)
    assert not later.drifted
    assert later.ids[: later.known].tolist() == request.known_ids.tolist()
    assert tokenizer.decode(later.ids.tolist()).count("Now: ") == 1


@pytest.mark.parametrize("other", [{"rollout_id": "other"}, {"attempt": 2}])
def test_another_rollout_and_another_attempt_have_their_own_time(folder, other):
    renderer = ChatRenderer(template_tokenizer(folder, MOMENT))
    assert renderer.prompt_ids(first()).ids.tolist() != renderer.prompt_ids(first(**other)).ids.tolist()


def test_a_time_in_the_parameters_of_the_template_is_used(folder):
    tokenizer = template_tokenizer(folder, DAY)
    renderer = ChatRenderer(tokenizer, template_params={"strftime_now": lambda form: "01 Jan 2020"})
    assert tokenizer.decode(renderer.prompt_ids(first()).ids.tolist()).startswith("Today: 01 Jan 2020<|im_start|>")


@pytest.mark.parametrize("days", [0, 1, 3])
def test_a_renderer_that_did_not_render_the_first_prompt_finds_its_day(folder, days):
    """As after a restart of the trainer in another day."""
    tokenizer = template_tokenizer(folder, DAY)
    then = datetime.now() - timedelta(days=days)
    before = ChatRenderer(tokenizer, template_params={"strftime_now": then.strftime})
    request = continued(tokenizer, before.prompt_ids(first()))
    renderer = ChatRenderer(tokenizer)
    for _ in range(2):
        later = renderer.prompt_ids(request)
        assert not later.drifted
        assert later.ids[: later.known].tolist() == request.known_ids.tolist()


def test_a_first_prompt_whose_time_cannot_be_found_drifts_once_and_is_told(folder, caplog):
    tokenizer = template_tokenizer(folder, MOMENT)
    request = continued(tokenizer, ChatRenderer(tokenizer).prompt_ids(first()))
    renderer = ChatRenderer(tokenizer)
    drifted = renderer.prompt_ids(request)
    assert (drifted.drifted, drifted.known) == (True, 0)
    assert "time" in caplog.text
    again = renderer.prompt_ids(request)
    assert again.ids.tolist() == drifted.ids.tolist()


def test_a_tokenizer_without_a_time_in_its_template_gets_no_time(folder):
    given = []

    class Tokenizer(TemplateTokenizer):
        def apply_chat_template(self, conversation, **params):
            given.append(params)
            return super().apply_chat_template(conversation, **params)

    ChatRenderer(Tokenizer(folder)).prompt_ids(first())
    assert all("strftime_now" not in params for params in given)


WRITTEN = {
    "a block first": "{%- if true %}a{% endif %}{{ strftime_now('%%') }}",
    "a newline first": "\n{{ strftime_now('%%') }}\n\n",
    "blanks first": '  {% if strftime_now is defined %}{{ strftime_now( "%%" ) }}{% endif %}\n x',
    "in a macro": "{% macro head() %}{{ strftime_now('%%') | upper }}{% endmacro %} {{ head() }}",
    "set": "{%- set now = strftime_now('%%') + strftime_now('y')[:1] %}\n{{ now }}",
    "a format that is computed": "{% set form = '%%' %}{{ strftime_now(form) }}",
}


@pytest.mark.parametrize("template", WRITTEN.values(), ids=list(WRITTEN))
@pytest.mark.parametrize("made", [template_tokenizer, transformers_tokenizer])
def test_the_text_of_a_template_with_a_time_is_its_own(folder, made, template):
    tokenizer = made(folder, template + "{{ messages[0].content }}")
    text = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, tokenize=False)
    assert text.count("%") >= 1
    prompt = ChatRenderer(tokenizer).prompt_ids(first())
    assert tokenizer.decode(prompt.ids.tolist()) == text
