"""Models by name, and the probe before a run."""

import json
import re

import pytest

from osmosis_grpc.protocol.errors import FailedPrecondition, MissingExtraError
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse
from osmosis_grpc.records.evaluate import ModelError, open_model
from osmosis_grpc.records.evaluate.models import entered
from osmosis_grpc.records.evaluate.results import Price, cost_of
from tests.model_server import KEY, model_server, reply

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


async def ask(model, row=0, number=1, messages=HI, **more):
    request = ChatRequest(rollout_id=f"test-abc-{row}", chat_number=number, messages=messages, **more)
    async with entered(model.policy):
        return (await model.policy(request)).message


async def test_mock_echo_replies_with_the_last_message():
    assert (await ask(open_model("mock:echo")))["content"] == "Hi"


async def test_mock_tools_calls_the_tools():
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    (call,) = (await ask(open_model("mock:tools"), tools=[tool]))["tool_calls"]
    assert call["function"]["name"] == "add"


async def test_mock_script_gives_the_replies_of_a_file(tmp_path):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    path = tmp_path / "replies.json"
    path.write_text(json.dumps(["one", {"content": None, "tool_calls": [call]}]))
    model = open_model(f"mock:script={path}")
    assert (await ask(model, number=1))["content"] == "one"
    assert (await ask(model, number=2))["tool_calls"] == [call]
    with pytest.raises(FailedPrecondition, match="the script has 2 replies, and this is chat 3"):
        await ask(model, number=3)


async def test_a_script_can_have_replies_for_each_row(tmp_path):
    path = tmp_path / "replies.json"
    path.write_text(json.dumps({"3": ["three"], "*": ["other"]}))
    model = open_model(f"mock:script={path}")
    assert [(await ask(model, row))["content"] for row in (3, 4)] == ["three", "other"]
    path.write_text(json.dumps({"3": ["three"]}))
    with pytest.raises(FailedPrecondition, match="the script has no replies for row 4"):
        await ask(open_model(f"mock:script={path}"), 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "replies.json: row *: [0] is a number, not a text or an assistant message"),
        ('"a"', "the replies of row * are not a list of texts and assistant messages"),
        ('[{"role": "user", "content": "a"}]', "row *: [0].role: a reply's role is assistant"),
        ("[\n x]", "replies.json:2:2: not JSON: Expecting value"),
    ],
)
def test_a_wrong_script_is_named(tmp_path, text, said):
    path = tmp_path / "replies.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=re.escape(said)):
        open_model(f"mock:script={path}")


@pytest.mark.parametrize(
    ("name", "url", "said"),
    [
        ("mock:none", None, "mock:none: the mocks are mock:echo, mock:tools and mock:script=FILE"),
        ("gpt-5-mini", None, "gpt-5-mini: a key is missing; set OPENAI_API_KEY, or give --base-url"),
        ("x", "ftp://a", "--base-url: is not http://HOST:PORT/v1"),
        ("litellm:", None, "litellm: is not litellm:NAME"),
        ("mock:script=none.json", None, "none.json: cannot be read: No such file"),
    ],
)
def test_a_wrong_name_says_what_to_do(name, url, said):
    with pytest.raises(ModelError, match=re.escape(said)):
        open_model(name, base_url=url)


@pytest.mark.parametrize("name", ["litellm:openai/gpt-5-mini", "anthropic/claude-sonnet-4-5"])
def test_litellm_names_its_extra(name):
    try:
        import litellm  # noqa: F401
    except ImportError:
        with pytest.raises(
            MissingExtraError, match=rf"litellm:{name.removeprefix('litellm:')} needs the extra 'litellm'"
        ):
            open_model(name)
    else:
        assert open_model(name, api_key="x").name == f"litellm:{name.removeprefix('litellm:')}"


async def test_a_server_is_asked_with_the_name_the_key_and_the_parameters():
    with model_server(lambda body: reply("Hello")) as server:
        model = open_model("org/tiny", base_url=server.url, api_key=KEY)
        await model.probe({"temperature": 0.5})
        assert (await ask(model))["content"] == "Hello"
    probe, chat = server.asked
    assert (probe["model"], probe["temperature"], probe["max_tokens"]) == ("org/tiny", 0.5, 16)
    assert chat["messages"] == HI
    assert "max_tokens" not in chat


async def test_the_key_and_the_address_come_from_variables(monkeypatch):
    with model_server(lambda body: reply("Hello")) as server:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        await open_model("tiny").probe({})
    assert len(server.asked) == 1


@pytest.mark.parametrize("refused", [{"return_token_ids"}, {"logprobs"}, {"max_tokens"}, {"logprobs", "max_tokens"}])
async def test_a_server_may_refuse_what_only_some_servers_know(refused):
    def answer(body):
        unknown = refused & body.keys()
        return (400, {"error": {"message": f"unknown: {unknown}"}}) if unknown else reply("Hello")

    with model_server(answer) as server:
        model = open_model("tiny", base_url=server.url, api_key=KEY)
        await model.probe({})
        assert (await ask(model))["content"] == "Hello"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "tiny: the model server answered 401"),
        (404, "tiny: the model server answered 404: bad [key] (POST "),
        (429, "tiny: the model server answered 429: "),
        (500, "tiny: the model server answered 500: "),
    ],
)
async def test_a_probe_that_fails_is_one_error(status, said):
    with (
        model_server(lambda body: (status, {"error": {"message": f"bad {KEY}"}})) as server,
        pytest.raises(ModelError, match=re.escape(said)) as error,
    ):
        await open_model("tiny", base_url=server.url, api_key=KEY).probe({})
    assert KEY not in str(error.value)
    if status == 401:
        assert str(error.value).endswith("check --api-key or OPENAI_API_KEY")
    if status == 404:
        assert str(error.value).endswith("check --base-url and --model")


async def test_a_missing_key_of_another_provider_names_its_variable():
    pytest.importorskip("litellm")
    with (
        model_server(lambda body: (401, {"error": {"message": "no key"}})) as server,
        pytest.raises(ModelError, match="ANTHROPIC_API_KEY"),
    ):
        await open_model("litellm:anthropic/claude-sonnet-4-5", base_url=server.url, api_key=KEY).probe({})


async def test_a_server_that_is_down_is_one_error():
    with model_server(lambda body: reply("Hello")) as server:
        pass
    with pytest.raises(ModelError, match=r"tiny: the model server cannot be reached: .*; check --base-url, and"):
        await open_model("tiny", base_url=server.url, api_key=KEY).probe({})


def test_a_price_is_for_a_million_tokens():
    response = ChatResponse(message=reply("x")["choices"][0]["message"], usage=reply("x")["usage"])
    assert cost_of(response, Price.of("0.25/2")) == pytest.approx(0.00125)
    assert cost_of(response, None) is None


def test_a_reported_price_is_used():
    message = {"role": "assistant", "content": "x"}
    assert cost_of(ChatResponse(message=message, usage={"cost": 0.5}), None) == 0.5
    assert cost_of(ChatResponse(message=message, extra={"cost": 0.25}), None) == 0.25


@pytest.mark.parametrize("text", ["", "1", "a/b", "1/-1", "inf/1", "1/nan"])
def test_a_wrong_price_is_refused(text):
    with pytest.raises(ValueError, match="is not PROMPT/REPLY in dollars for a million tokens"):
        Price.of(text)


@pytest.mark.parametrize("url", ["http://ada:s3cret@host/v1", "http://[s3cret/v1", "http://host/v1?key=s3cret"])
def test_the_error_about_a_base_url_does_not_show_it(url):
    with pytest.raises(ModelError, match=r"^--base-url: ") as refused:
        open_model("tiny", base_url=url)
    assert "s3cret" not in str(refused.value)


def test_the_address_of_the_variable_is_the_address_of_the_model(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    assert open_model("tiny").url == "http://127.0.0.1:8000/v1"
    assert open_model("tiny", base_url="http://127.0.0.1:9000/v1").url == "http://127.0.0.1:9000/v1"
    assert open_model("mock:echo").url is None
