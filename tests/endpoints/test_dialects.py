"""What programs send in each API: harmless keys are ignored and recorded, and tools come back as what they were."""

import json
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from osmosis_grpc.agent import CompletionsResult
from osmosis_grpc.endpoints import anthropic_messages, chat_completions, gemini, responses
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import ContextLengthExceeded, InvalidArgument
from osmosis_grpc.protocol.types import OutcomeStatus
from tests.endpoints.programs import USER, outcome_of

CHAT, RESPONSES, MESSAGES = "/chat/completions", "/responses", "/v1/messages"
GEMINI = "/v1beta/models/policy:generateContent"
BODIES = {
    CHAT: {"model": "policy", "messages": [USER]},
    RESPONSES: {"model": "policy", "input": USER["content"]},
    MESSAGES: {"model": "policy", "max_tokens": 5, "messages": [USER]},
    GEMINI: {"contents": [{"role": "user", "parts": [{"text": USER["content"]}]}]},
}
HINTS = {
    CHAT: {"store": True, "user": "u", "metadata": {"a": "b"}, "prediction": {"type": "content"}, "unknown_hint": 1},
    RESPONSES: {"client_metadata": {"a": "b"}, "prompt_cache_key": "k", "include": ["reasoning.encrypted_content"]},
    MESSAGES: {
        "context_management": {"edits": []},
        "thinking": {"type": "adaptive"},
        "betas": ["x"],
        "unknown_hint": 1,
    },
    GEMINI: {"safetySettings": [{"category": "x"}], "labels": {"a": "b"}},
}
APIS = {CHAT: chat_completions, RESPONSES: responses, MESSAGES: anthropic_messages, GEMINI: gemini}
RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))
MODULES = {"completions": chat_completions, "responses": responses, "messages": anthropic_messages}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


async def post(endpoint, path, body):
    """Returns the status and the body of an answer."""
    async with (
        aiohttp.ClientSession(headers={"x-api-key": endpoint.api_key}) as session,
        session.post(endpoint.base_url + path, json=body) as response,
    ):
        return response.status, await response.json()


def reply_of(message, **more):
    return CompletionsResult(
        message={"role": "assistant", **message}, token_ids=None, logprobs=None, usage={}, finish_reason=None, **more
    )


def called(name, arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


@pytest.mark.parametrize("path", BODIES)
async def test_hints_are_ignored_and_recorded(path):
    seen, answers = [], []

    def watched(request):
        seen.append(request)
        return answer(request, "fine")

    async def program(endpoint):
        answers.append(await post(endpoint, path, BODIES[path] | HINTS[path]))
        return 1.0

    outcome = await outcome_of(program, watched)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert [status for status, _ in answers] == [200]
    assert not HINTS[path].keys() & seen[0].params.keys()
    ignored = APIS[path].read(BODIES[path] | HINTS[path]).ignored
    assert {"unknown_hint"} & HINTS[path].keys() <= set(ignored)


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        (CHAT, "invalid_request_error", "maximum context length is 8000 tokens"),
        (RESPONSES, "invalid_request_error", "maximum context length is 8000 tokens"),
        (MESSAGES, "invalid_request_error", "prompt is too long: 9000 tokens > 8000 maximum"),
        (GEMINI, "INVALID_ARGUMENT", "(9000) exceeds the maximum number of tokens allowed (8000)"),
    ],
)
async def test_a_full_context_is_said_in_the_words_of_the_api_and_the_rollout_goes_on(path, kind, words):
    answers = []

    def full(request):
        if request.chat_number == 1:
            raise ContextLengthExceeded(9000, 8000)
        return answer(request, "shorter")

    async def program(endpoint):
        answers.append(await post(endpoint, path, BODIES[path]))
        answers.append(await post(endpoint, path, BODIES[path]))
        return 1.0

    outcome = await outcome_of(program, full)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert [status for status, _ in answers] == [400, 200]
    error = answers[0][1]["error"]
    assert (error.get("type") or error["status"]) == kind
    assert words in error["message"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_refusal_of_the_policy_is_the_programs_error_and_is_said_once(path):
    answers = []

    def refuses(request):
        raise InvalidArgument("params.logit_bias", "is not supported")

    async def program(endpoint):
        answers.append(await post(endpoint, path, BODIES[path]))

    await outcome_of(program, refuses)
    assert [status for status, _ in answers] == [400]
    assert "params.logit_bias" in answers[0][1]["error"]["message"]


@pytest.mark.parametrize(
    ("tool", "function", "arguments", "item"),
    [
        (
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "definition": "start: X"}},
            "apply_patch",
            {"input": "*** Begin Patch"},
            {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin Patch"},
        ),
        (
            {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
            "agents__spawn",
            {"a": "b"},
            {"type": "function_call", "name": "spawn", "namespace": "agents", "arguments": '{"a": "b"}'},
        ),
        (
            {"type": "local_shell"},
            "local_shell",
            {"command": ["ls"]},
            {"type": "local_shell_call", "action": {"type": "exec", "env": {}, "command": ["ls"]}},
        ),
        ({"type": "shell"}, "shell", {"commands": ["ls"]}, {"type": "shell_call", "action": {"commands": ["ls"]}}),
        (
            {"type": "apply_patch"},
            "apply_patch",
            {"type": "delete_file", "path": "a"},
            {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}},
        ),
    ],
    ids=["custom", "namespace", "local shell", "shell", "patch"],
)
def test_a_tool_of_responses_is_a_function_for_the_policy_and_comes_back_as_what_it_was(
    tool, function, arguments, item
):
    request = responses.read(BODIES[RESPONSES] | {"tools": [tool]})
    assert [each["function"]["name"] for each in request.tools] == [function]
    reply = reply_of(called(function, arguments))
    (made,) = responses.write(request, reply)["output"]
    assert item.items() <= made.items()
    history = responses.read(BODIES[RESPONSES] | {"input": [USER, made, {"role": "user", "content": "and?"}]}).messages
    assert json.loads(history[1]["tool_calls"][0]["function"]["arguments"]) == arguments
    assert history[1]["tool_calls"][0]["function"]["name"] == function
    assert request.written(reply)["tool_calls"] == history[1]["tool_calls"]


async def test_the_tokens_of_a_call_of_a_custom_tool_stay_in_one_segment():
    async def program(endpoint):
        body = BODIES[RESPONSES] | {"tools": [{"type": "custom", "name": "patch"}]}
        _, first = await post(endpoint, RESPONSES, body)
        output = {"type": "custom_tool_call_output", "call_id": first["output"][0]["call_id"], "output": "done"}
        status, _ = await post(endpoint, RESPONSES, body | {"input": [USER, *first["output"], output]})
        assert status == 200
        return 1.0

    def policy(request):
        text = "not JSON at all"  # the program gets what the policy wrote
        call = {"id": "", "type": "function", "function": {"name": "patch", "arguments": text}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return answer(request, message if request.chat_number == 1 else "fine", tokens=3)

    outcome = await outcome_of(program, policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert [segment.chats for segment in outcome.samples["main"].segments] == [(1, 2)]


async def test_a_response_can_be_continued_by_its_id():
    seen = []

    def watched(request):
        seen.append(list(request.messages))
        return answer(request, f"reply {request.chat_number}", tokens=3)

    async def program(endpoint):
        _, first = await post(endpoint, RESPONSES, BODIES[RESPONSES] | {"instructions": "Be brief."})
        more = {"previous_response_id": first["id"], "input": "and?", "instructions": "Be brief."}
        status, second = await post(endpoint, RESPONSES, BODIES[RESPONSES] | more)
        assert status == 200
        more["previous_response_id"] = second["id"]
        await post(endpoint, RESPONSES, BODIES[RESPONSES] | more)
        missing = await post(endpoint, RESPONSES, BODIES[RESPONSES] | {"previous_response_id": "resp_unknown"})
        assert missing[0] == 400
        return 1.0

    outcome = await outcome_of(program, watched)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert [len(messages) for messages in seen] == [2, 4, 6]
    (segment,) = outcome.samples["main"].segments
    assert segment.chats == (1, 2, 3)
    assert np.count_nonzero(segment.mask()) == 9


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}, "title": "t"}, "td"),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "d"}]}}, "d"),
        ({"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "d"}]}, "tsd"),
    ],
    ids=["text", "content", "search result"],
)
def test_documents_are_texts_for_the_policy(block, text):
    request = anthropic_messages.read(BODIES[MESSAGES] | {"messages": [{"role": "user", "content": [block]}]})
    content = request.messages[0]["content"]
    assert (content if isinstance(content, str) else "".join(part["text"] for part in content)) == text
    assert request.ignored == ()


def test_a_document_that_no_policy_reads_is_named_in_its_place():
    block = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}
    request = anthropic_messages.read(BODIES[MESSAGES] | {"messages": [{"role": "user", "content": [block]}]})
    assert "application/pdf" in request.messages[0]["content"]
    assert request.ignored == ("messages[0].content[0]: application/pdf",)


@pytest.mark.parametrize(
    ("kind", "name", "required"),
    [("bash_20250124", "bash", []), ("text_editor_20250728", "str_replace_based_edit_tool", ["command", "path"])],
)
def test_tools_of_anthropics_clients_are_functions(kind, name, required):
    request = anthropic_messages.read(BODIES[MESSAGES] | {"tools": [{"type": kind, "name": name}]})
    (tool,) = request.tools
    assert (tool["function"]["name"], tool["function"]["parameters"]["required"]) == (name, required)


@pytest.mark.parametrize(
    ("path", "tools", "ignored"),
    [
        (MESSAGES, [{"type": "web_search_20250305", "name": "web_search"}], ("tools[0]: web_search_20250305",)),
        (RESPONSES, [{"type": "web_search"}, {"type": "function", "name": "f"}], ("tools[0]: web_search",)),
        (GEMINI, [{"googleSearch": {}}], ("tools[0]: googleSearch",)),
    ],
)
def test_tools_of_a_providers_servers_are_left_out_and_recorded(path, tools, ignored):
    assert APIS[path].read(BODIES[path] | {"tools": tools}).ignored == ignored


def test_a_line_about_billing_is_no_part_of_the_prompt():
    system = [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "Be brief."}]
    request = anthropic_messages.read(BODIES[MESSAGES] | {"system": system})
    assert request.messages[0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_in_the_form_of_each_api(key):
    reply = reply_of({"content": "5", key: "2 + 3"})
    block = anthropic_messages.write(anthropic_messages.read(BODIES[MESSAGES]), reply)["content"][0]
    assert (block["type"], block["thinking"]) == ("thinking", "2 + 3")
    assert block["signature"]
    item = responses.write(responses.read(BODIES[RESPONSES]), reply)["output"][0]
    assert (item["type"], item["summary"][0]["text"]) == ("reasoning", "2 + 3")
    message = chat_completions.write(chat_completions.read(BODIES[CHAT]), reply)["choices"][0]["message"]
    assert message["reasoning_content"] == "2 + 3"
    part = gemini.write(gemini.read(BODIES[GEMINI]), reply)["candidates"][0]["content"]["parts"][0]
    assert part == {"text": "2 + 3", "thought": True}


def test_a_call_of_gemini_has_its_result_and_lower_case_types():
    call = {"functionCall": {"id": "c1", "name": "f", "args": {"a": "b"}}}
    result = {"functionResponse": {"id": "c1", "name": "f", "response": {"output": "fine"}}}
    body = {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            *BODIES[GEMINI]["contents"],
            {"role": "model", "parts": [call]},
            {"role": "user", "parts": [result]},
        ],
        "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        "generationConfig": {"maxOutputTokens": 7, "stopSequences": ["END"], "thinkingConfig": {}},
    }
    request = gemini.read(body)
    assert [message["role"] for message in request.messages] == ["system", "user", "assistant", "tool"]
    assert request.messages[-1] == {"role": "tool", "tool_call_id": "c1", "content": "fine"}
    assert request.tools[0]["function"]["parameters"] == {"type": "object"}
    assert request.params == {
        "max_tokens": 7,
        "stop": ["END"],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    }
    assert request.ignored == ("generationConfig.thinkingConfig",)


def test_calls_of_gemini_without_ids_have_their_results_in_order():
    calls = [{"functionCall": {"name": "f", "args": {"a": text}}} for text in "xy"]
    results = [{"functionResponse": {"name": "f", "response": {"output": text}}} for text in "xy"]
    contents = [*BODIES[GEMINI]["contents"], {"role": "model", "parts": calls}, {"role": "user", "parts": results}]
    messages = gemini.read({"contents": contents}).messages
    ids = [call["id"] for call in messages[1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [(message["tool_call_id"], message["content"]) for message in messages[2:]] == list(
        zip(ids, "xy", strict=True)
    )


async def test_programs_can_look_around_before_they_ask():
    async def program(endpoint):
        async with aiohttp.ClientSession(headers={"x-api-key": endpoint.api_key}) as session:
            async with session.head(endpoint.base_url) as response:
                assert response.status == 200
            async with session.get(endpoint.base_url + "/models/gpt-5") as response:
                assert (await response.json())["id"] == "gpt-5"
        for path, key in (
            (MESSAGES + "/count_tokens", "input_tokens"),
            (RESPONSES + "/input_tokens", "input_tokens"),
            (GEMINI.replace("generateContent", "countTokens"), "totalTokens"),
        ):
            body = next(BODIES[known] for known in (MESSAGES, RESPONSES, GEMINI) if path.startswith(known[:12]))
            status, counted = await post(endpoint, path, body)
            assert (status, counted[key] > 0) == (200, True)
        return 1.0

    outcome = await outcome_of(program, lambda request: answer(request, "fine"))
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_requests_of_real_programs_are_read(file):
    recorded = json.loads(file.read_text())
    for each in recorded["requests"]:
        name = each["path"].rsplit("/", 1)[-1]
        request = (MODULES.get(name) or gemini).read(each["body"])
        assert all(message["role"] != "developer" for message in request.messages)
        assert all(tool["function"]["name"] for tool in request.tools or ())
        assert list(request.ignored) == each["ignored"]
        assert sorted(request.params) == each["params"]
