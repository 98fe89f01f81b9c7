"""Requests that a base URL refuses: in the form of their API, with the field's name, and without a retry."""

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import ChatRef, OutcomeStatus
from tests.endpoints.programs import USER, outcome_of, running

pytestmark = pytest.mark.adapters
anthropic = pytest.importorskip("anthropic")
httpx2 = pytest.importorskip("httpx2")
openai = pytest.importorskip("openai")

CHAT, RESPONSES, MESSAGES = "/chat/completions", "/responses", "/v1/messages"
BODIES = {
    CHAT: {"model": "policy", "messages": [USER]},
    RESPONSES: {"model": "policy", "input": "hello"},
    MESSAGES: {"model": "policy", "max_tokens": 5, "messages": [USER]},
}
FUNCTION = {"name": "add", "arguments": "{}"}


def said(content):
    return {"messages": [{"role": "user", "content": content}]}


def called(call):
    return {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": call}]}


REFUSED = [
    (CHAT, {"functions": [{"name": "add"}]}, "functions"),
    (CHAT, {"function_call": "auto"}, "function_call"),
    (CHAT, {"logprobs": True, "top_logprobs": 2}, "top_logprobs"),
    (CHAT, called(5), "messages[1].tool_calls"),
    (CHAT, called([5]), "messages[1].tool_calls[0]"),
    (CHAT, called([{"id": "c"}]), "messages[1].tool_calls[0].function"),
    (CHAT, called([{"id": "c", "function": FUNCTION | {"arguments": {}}}]), "function.arguments"),
    (CHAT, said(5), "messages[0].content"),
    (CHAT, said([5]), "messages[0].content[0]"),
    (CHAT, said([{"type": "image_url", "image_url": 5}]), "messages[0].content[0].image_url"),
    (CHAT, said([{"type": "image_url", "image_url": {"url": 5}}]), "messages[0].content[0].image_url.url"),
    (CHAT, {"tools": 5}, "tools"),
    (RESPONSES, {"input": [{"type": "reasoning", "summary": 5}]}, "input[0].summary"),
    (RESPONSES, {"input": [{"type": "reasoning", "summary": [{"text": 5}]}]}, "input[0].summary[0].text"),
    (RESPONSES, {"input": [{"type": "function_call", "call_id": "c", "name": 5}]}, "input[0].name"),
    (RESPONSES, {"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    (RESPONSES, {"prompt": {"id": "x"}}, "prompt"),
    (RESPONSES, {"include": ["message.output_text.logprobs"]}, "include"),
    (RESPONSES, {"reasoning": 5}, "reasoning"),
    (MESSAGES, said([{"type": "image", "source": {"type": "file", "file_id": "x"}}]), "content[0].source.type"),
    (MESSAGES, said([{"type": "image", "source": {"type": "base64", "data": "x"}}]), "content[0].source.media_type"),
    (MESSAGES, said([{"type": "tool_use", "id": "c", "name": "add", "input": 5}]), "content[0].input"),
    (MESSAGES, {"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
    (MESSAGES, {"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
]


async def test_wrong_fields_are_named_in_the_form_of_the_api():
    problems = []

    async def program(endpoint):
        async with httpx2.AsyncClient(headers={"x-api-key": endpoint.api_key}) as http:
            for path, change, field in REFUSED:
                response = await http.post(endpoint.base_url + path, json=BODIES[path] | change)
                error = response.json().get("error", {})
                said = (response.status_code, response.headers.get("x-should-retry"), error.get("type"))
                if said != (400, "false", "invalid_request_error") or field not in error["message"]:
                    problems.append((path, change, said, error))
        return 1.0

    outcome = await outcome_of(program, lambda request: answer(request, "fine"))
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert problems == []
    assert all(not sample.segments for sample in outcome.samples.values()), "no refused request has reached the policy"


async def test_a_trainers_parameter_with_a_reserved_name_is_refused():
    async def program(endpoint):
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as model:
            with pytest.raises(openai.BadRequestError, match="purpose"):
                await model.chat.completions.create(model="policy", messages=[USER])
        return 1.0

    async with running(program, lambda request: answer(request, "fine")) as (trainer, _):
        outcome = await trainer.rollout(rollout_id="r1", messages=[USER], completion_params={"purpose": 1})
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure


async def test_paths_that_are_not_served_have_the_form_of_the_api():
    seen = {}

    async def program(endpoint):
        async with httpx2.AsyncClient(headers={"x-api-key": endpoint.api_key}) as http:
            for method, path in [("POST", "/embeddings"), ("POST", "/completions"), ("GET", CHAT), ("GET", MESSAGES)]:
                response = await http.request(method, endpoint.base_url + path)
                assert response.headers["x-should-retry"] == "false"
                assert response.json()["error"]["message"]
                seen[method, path] = response.status_code, response.json().get("type")
        async with anthropic.AsyncAnthropic(base_url=endpoint.base_url, api_key=endpoint.api_key) as model:
            assert (await model.messages.count_tokens(model="policy", messages=[USER])).input_tokens > 0
            assert [each.id async for each in model.models.list()] == ["policy"]
            assert (await model.models.retrieve("policy")).id == "policy"
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as model:
            assert (await model.models.retrieve("policy/critic")).id == "policy/critic"
            with pytest.raises(openai.NotFoundError, match="not served here"):
                await model.embeddings.create(model="policy", input="x")
        return 1.0

    outcome = await outcome_of(program, lambda request: answer(request, "fine"))
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert seen == {
        ("POST", "/embeddings"): (404, None),
        ("POST", "/completions"): (404, None),
        ("GET", CHAT): (405, None),
        ("GET", MESSAGES): (405, "error"),
    }


async def test_an_unexpected_exception_is_an_error_without_its_text(monkeypatch, caplog):
    async def program(endpoint):
        async def fails(*args, **options):
            raise RuntimeError("secret")

        monkeypatch.setattr("osmosis_grpc.agent.RolloutContext.ask", fails)
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as model:
            with pytest.raises(openai.InternalServerError) as caught:
                await model.chat.completions.create(model="policy", messages=[USER])
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert caught.value.body["code"] == "internal"
        assert "secret" not in caught.value.body["message"]
        return 1.0

    outcome = await outcome_of(program, lambda request: answer(request, "fine"))
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert caplog.text.count("RuntimeError: secret") == 1


@pytest.mark.parametrize("header", ["a%2Fb", "a%0Ab", "x" * 300])
async def test_a_refused_request_changes_nothing(header):
    calls = [{"id": "c1", "type": "function", "function": {"name": "help", "arguments": "{}"}}]

    def policy(request):
        first = len(request.messages) == 1
        return answer(request, {"role": "assistant", "content": None, "tool_calls": calls} if first else "fine")

    async def program(endpoint):
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as model:

            async def ask(messages, **options):
                reply = await model.chat.completions.create(model="policy", messages=messages, **options)
                return reply.choices[0].message.model_dump(exclude_none=True)

            async def refused(messages):
                with pytest.raises(openai.BadRequestError):
                    await ask(messages, extra_headers={"x-osmosis-sample": header})

            await refused([USER])
            planner = [USER, await ask([USER])]
            planner.append({"role": "tool", "tool_call_id": "c1", "content": "5"})
            await refused(planner)
            await ask([{"role": "system", "content": "Help."}, USER])
            await ask(planner)
        return 1.0

    outcome = await outcome_of(program, policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    parents = {name: sample.parent for name, sample in outcome.samples.items()}
    assert parents == {"main": None, "sample-2": ChatRef("main", 1)}


BEGINNING = {"role": "assistant", "content": "The answer is ("}


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        (MESSAGES, {"max_tokens": 9, "messages": [USER, BEGINNING]}, "invalid_request_error"),
        (CHAT, {"messages": [USER], "tool_choice": "required"}, "invalid_request_error"),
        (MESSAGES, {"max_tokens": 9, "messages": [USER], "tool_choice": {"type": "any"}}, "invalid_request_error"),
    ],
)
async def test_what_cannot_be_served_exactly_is_a_bad_request(path, body, kind):
    async def program(endpoint):
        async with httpx2.AsyncClient() as http:
            headers = {"authorization": f"Bearer {endpoint.api_key}"}
            got = await http.post(endpoint.base_url + path, json={"model": "policy"} | body, headers=headers)
        assert (got.status_code, got.json()["error"]["type"]) == (400, kind)
        return 1.0

    outcome = await outcome_of(program, lambda request: answer(request, "fine"))
    assert (outcome.status, outcome.samples) == (OutcomeStatus.COMPLETED, {}), outcome.failure


@pytest.mark.parametrize("choice", ["auto", "none"])
@pytest.mark.parametrize("tools", [{}, {"tools": []}])
async def test_parameters_about_tools_are_left_out_without_tools(tools, choice):
    asked = []

    def policy(request):
        asked.append(request.params)
        return answer(request, "fine")

    bodies = {
        CHAT: {"messages": [USER], "tool_choice": choice},
        MESSAGES: {"max_tokens": 9, "messages": [USER], "tool_choice": {"type": choice}},
        "/responses": {"input": [USER], "tool_choice": choice},
    }

    async def program(endpoint):
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {endpoint.api_key}"}) as http:
            for path, body in bodies.items():
                body = {"model": "policy", "parallel_tool_calls": True} | body | tools
                if path == MESSAGES:
                    del body["parallel_tool_calls"]
                assert (await http.post(endpoint.base_url + path, json=body)).status_code == 200
        return 1.0

    outcome = await outcome_of(program, policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert [{"tool_choice", "parallel_tool_calls"} & params.keys() for params in asked] == [set()] * 3
