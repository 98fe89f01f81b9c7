"""The tokenizer of a folder with tokenizer.json and a chat template."""

import json

import pytest

from osmosis_grpc.policies import ChatRenderer, TemplateTokenizer
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest
from tests.policies.model_folder import CHATML, write_tokenizer

pytestmark = pytest.mark.adapters
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

QUESTION = [{"role": "user", "content": "2 + 3? ü"}]


@pytest.fixture
def folder(tmp_path):
    return write_tokenizer(tmp_path / "model")


def test_a_conversation_becomes_ids_and_text_again(folder):
    tokenizer = TemplateTokenizer(folder)
    text = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)
    assert text == "<|im_start|>user\n2 + 3? ü<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=True)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text) == ids
    special = [tokenizer.decode([number]) for number in tokenizer.all_special_ids]
    assert special == ["<|im_start|>", "<|im_end|>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\n2 + 3? ü\nassistant\n"


def test_a_renderer_takes_it(folder):
    tokenizer = TemplateTokenizer(folder)
    prompt = ChatRenderer(tokenizer).prompt_ids(ChatRequest(rollout_id="r", messages=QUESTION))
    assert tokenizer.decode(prompt.ids.tolist()).startswith("<|im_start|>user\n2 + 3?")


def test_special_tokens_have_ids(folder):
    tokenizer = TemplateTokenizer(folder)
    (end,) = tokenizer.encode("<|im_end|>")
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == end
    assert tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|nothing|>"]) == [end, tokenizer.unk_token_id]


def test_a_template_has_what_transformers_gives_it(folder):
    template = (
        "{%- for message in messages %}\n    {%- if loop.index0 > 0 %}{% break %}{% endif %}\n"
        "{% generation %}{{ message.content }}{% endgeneration %}\n{%- endfor %}"
        "{{ eos_token }}{{ {'a': 'ü'} | tojson }}{{ strftime_now('%Y')[:1] }}{{ thinking }}"
    )
    text = TemplateTokenizer(folder, chat_template=template).apply_chat_template(QUESTION * 2, thinking=True)
    assert text == '2 + 3? ü<|im_end|>{"a": "ü"}2True'


def test_a_template_that_raises_is_an_error_of_the_messages(folder):
    tokenizer = TemplateTokenizer(folder, chat_template="{{ raise_exception('only one message') }}")
    with pytest.raises(InvalidArgument, match="messages: the chat template refuses them: only one message"):
        ChatRenderer(tokenizer).prompt_ids(ChatRequest(rollout_id="r", messages=QUESTION))


def test_a_template_runs_in_a_sandbox(folder):
    tokenizer = TemplateTokenizer(folder, chat_template="{{ messages.__class__.__base__.__subclasses__() }}")
    with pytest.raises(Exception, match="unsafe"):
        tokenizer.apply_chat_template(QUESTION)


def test_a_named_template_of_the_configuration_is_found(folder):
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="has no chat template"):
        TemplateTokenizer(folder)
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))
    assert TemplateTokenizer(folder).apply_chat_template(QUESTION).startswith("<|im_start|>user")


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("tokenizer.json", "{}", "tokenizer.json: is not a tokenizer"),
        ("tokenizer_config.json", "{", "tokenizer_config.json: is not JSON"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: is not a JSON object"),
        ("chat_template.jinja", "{% if %}", "the chat template has an error in line 1"),
    ],
)
def test_a_wrong_file_is_named(folder, file, text, problem):
    (folder / file).write_text(text)
    with pytest.raises(ValueError, match=problem):
        TemplateTokenizer(folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.tokenizer\.json"):
        TemplateTokenizer(tmp_path / "nowhere")
