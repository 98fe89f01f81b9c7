"""Events of the base URL for readers that take more characters for the end of a line than server-sent events do."""

import json

import httpx
import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from tests.endpoints.programs import outcome_of

TEXT = "a\u2028b\u2029c\x85d ü 日本"
BODIES = {
    "chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
    "responses": {"input": TEXT},
    "messages": {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 9},
}


@pytest.mark.parametrize("path", BODIES)
async def test_each_event_is_on_a_line_of_its_own_for_every_reader(path):
    """httpx splits a stream with str.splitlines()."""
    lines = []

    async def program(endpoint):
        body = {"model": "policy", "stream": True} | BODIES[path]
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", f"{endpoint.base_url}/{path}", json=body, headers=headers) as response,
        ):
            assert response.status_code == 200
            lines.extend([line async for line in response.aiter_lines()])

    outcome = await outcome_of(program, lambda request: answer(request, TEXT))
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    assert TEXT in json.dumps([json.loads(each) for each in data if each != "[DONE]"], ensure_ascii=False)
    assert "ü 日本" in "".join(data), "other characters travel as they are"
    assert all(not line or line.startswith(("data:", "event:", ":")) for line in lines)
