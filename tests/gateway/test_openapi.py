"""The gateway's OpenAPI document: complete in itself, and true of the server that gives it."""

import asyncio
import json
import sys

import jsonschema_rs
import pytest

from osmosis_gateway.http_bodies import InitBody
from osmosis_grpc.network.http.bounded_json import Bounds
from osmosis_grpc.testing.calculator import CalculatorAgent
from tests.gateway.conftest import INIT

HEALTH, PLATFORM, METRICS = "/health", "/platform/health", "/metrics"
ROLLOUT, CANCEL, DRAIN = "/rollout", "/rollout/cancel", "/drain"
RESULT, STATUS = "/rollout/{rollout_id}/result", "/rollout/{rollout_id}/status"
GETS, POSTS = (HEALTH, PLATFORM, METRICS, RESULT, STATUS), (INIT, ROLLOUT, CANCEL, DRAIN)
ROUTES = {(path, "get") for path in GETS} | {(path, "post") for path in POSTS}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)


SHOWN = {"authorization": "Bearer t"}


async def document(gateway):
    answer = await gateway.client.get("/openapi.json", headers=SHOWN)
    assert answer.status_code == 200
    return answer.json()


def everywhere(value):
    """A JSON value and all within it."""
    yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from everywhere(item)


def operations(spec):
    return {(path, method): row for path, rows in spec["paths"].items() for method, row in rows.items()}


# What it says


@pytest.mark.parametrize("token", [None, "t"])
async def test_every_route_is_in_it(start, token):
    gateway = await start(token=token)
    assert set(operations(await document(gateway))) == ROUTES


async def test_no_reference_leads_nowhere(start):
    spec = await document(await start(token="t"))
    references = [row["$ref"] for row in everywhere(spec) if isinstance(row, dict) and "$ref" in row]
    assert references
    for reference in references:
        at = spec
        for part in reference.removeprefix("#/").split("/"):
            at = at[part]


async def test_the_schema_has_every_field_of_the_body(gateway):
    (media,) = operations(await document(gateway))[INIT, "post"]["requestBody"]["content"].items()
    assert media[0] == "application/json"
    schema = media[1]["schema"]
    assert set(schema["properties"]) == set(InitBody.model_fields)
    assert set(schema["required"]) == {"rollout_id", "server_url", "messages", "completion_params"}
    assert all(row.get("description") for row in schema["properties"].values())
    assert not [row for row in everywhere(schema) if isinstance(row, dict) and ("$ref" in row or "$defs" in row)]
    jsonschema_rs.validator_for(schema)


async def test_the_schema_names_the_security_of_a_guarded_server(start):
    open_spec, spec = await document(await start()), await document(await start(token="t"))
    assert not [row for row in operations(open_spec).values() if row.get("security")]
    rows = operations(spec)
    (scheme,) = rows[INIT, "post"]["security"][0]
    reported = spec["components"]["securitySchemes"][scheme]
    assert (reported["type"], reported["scheme"]) == ("http", "bearer")
    assert rows[PLATFORM, "get"]["security"] == rows[METRICS, "get"]["security"] == rows[INIT, "post"]["security"]
    assert "security" not in rows[HEALTH, "get"]
    assert '"t"' not in json.dumps(spec)


async def test_what_may_be_asked_later_has_its_header(gateway):
    for row in operations(await document(gateway)).values():
        for status in {"429", "503"} & set(row["responses"]):
            assert "Retry-After" in row["responses"][status]["headers"]


# Whether it is true


class Broken(CalculatorAgent):
    """Has no tools to tell."""

    def get_tools(self, request):
        raise RuntimeError("no \ud800 tools")


async def test_the_schema_has_every_status_that_occurs(start, trainer):
    gate = asyncio.Event()

    async def held(writer):
        await gate.wait()

    def says(spec, path, method, answer):
        row = operations(spec)[path, method]["responses"][str(answer.status_code)]
        ((media, reported),) = row["content"].items()
        assert answer.headers["content-type"] == media
        whole = {"components": spec["components"]} | reported["schema"]
        jsonschema_rs.validator_for(whole).validate(answer.json())
        for name in row.get("headers", ()):
            assert int(answer.headers[name]) >= 0
        seen.add((path, answer.status_code))

    seen = set()
    trainer.answers["/v1/chat/completions"] = [held]
    gateway, closed = await start(max_concurrent=1, max_queued=0), await start(token="t")
    broken, small = await start(Broken()), await start(bounds=Bounds(size=10))
    spec = await document(gateway)

    says(spec, INIT, "post", await closed.init(trainer.body()))
    says(spec, INIT, "post", await broken.init(trainer.body()))
    says(spec, INIT, "post", await gateway.init(trainer.body(agent_loop="nobody")))
    says(spec, INIT, "post", await gateway.init(b"{}"))
    says(spec, INIT, "post", await gateway.init(b"{}", headers={"content-type": "text/plain"}))
    says(spec, INIT, "post", await gateway.init(b"{}", headers={"host": "evil.example"}))
    says(spec, INIT, "post", await small.init(b" " * 11))
    says(spec, INIT, "post", await gateway.init(trainer.body()))
    says(spec, INIT, "post", await gateway.init(trainer.body(max_turns=3)))
    says(spec, INIT, "post", await gateway.init(trainer.body("r2")))
    says(spec, HEALTH, "get", await gateway.client.get(HEALTH))
    says(spec, PLATFORM, "get", await gateway.client.get(PLATFORM))
    says(spec, PLATFORM, "get", await closed.client.get(PLATFORM))
    says(spec, PLATFORM, "get", await closed.client.get(PLATFORM, headers={"authorization": "t"}))
    says(spec, METRICS, "get", await closed.client.get(METRICS))
    says(spec, METRICS, "get", await gateway.client.get(METRICS, headers={"host": "evil.example"}))
    lease = {"initial_messages": [], "chat_completions_url": trainer.url, "rollout_id": "leased"}
    callbacks = lease | {"rollout_id": "called", "completion_callback_url": trainer.url}
    free = await start()
    evil = {"host": "evil.example"}
    for path, body in ((ROLLOUT, {}), (CANCEL, {}), (DRAIN, {"timeout_sec": 301})):
        for one, headers in ((closed, {}), (free, evil), (free, {})):
            says(spec, path, "post", await one.client.post(path, json=body, headers=headers))
    for body in (lease, lease, callbacks):
        says(spec, ROLLOUT, "post", await free.client.post(ROLLOUT, json=body))
    says(spec, DRAIN, "post", await closed.client.post(DRAIN, json={}, headers=SHOWN))
    for path in (RESULT, STATUS):
        for one, headers in ((closed, {}), (free, evil), (free, {}), (free, {"x-osmosis-rollout-lease": "wrong"})):
            for rollout_id in ("leased", "unknown"):
                answer = await one.client.get(path.format(rollout_id=rollout_id), headers=headers)
                says(spec, path, "get", answer)
    again = {
        "x-osmosis-rollout-lease": (await free.client.post(ROLLOUT, json=lease | {"rollout_id": "again"})).json()[
            "polling_lease_token"
        ]
    }
    says(spec, CANCEL, "post", await free.client.post(CANCEL, json={"all": True}))
    says(spec, RESULT, "get", await free.client.get(RESULT.format(rollout_id="again"), headers=again))
    says(spec, DRAIN, "post", await free.client.post(DRAIN, json={"timeout_sec": 0}))
    await gateway.server.drain()
    says(spec, INIT, "post", await gateway.init(trainer.body("r3")))
    says(spec, HEALTH, "get", await gateway.client.get(HEALTH))
    gate.set()

    reported = {(path, int(status)) for (path, _), row in operations(spec).items() for status in row["responses"]}
    seen |= {(path, status) for path in POSTS for status in (400, 408)}  # test_hostile_input sends what they are for
    seen |= {(path, status) for path in (ROLLOUT, CANCEL, DRAIN) for status in (413, 415)}  # as INIT
    seen |= {(path, 501) for path in (ROLLOUT, RESULT, STATUS, CANCEL, DRAIN)}  # of a gateway that runs alone
    seen |= {(ROLLOUT, status) for status in (404, 429, 500, 503)}  # as INIT
    seen |= {(STATUS, 422)}  # FastAPI adds it to every route with a parameter
    seen |= {(METRICS, 200), (METRICS, 404), (METRICS, 501)}  # test_metrics has these
    seen |= {(HEALTH, 503), (PLATFORM, 503)}  # of a gateway that runs alone, whose server is away
    seen |= {(path, 503) for path in (RESULT, STATUS, CANCEL, DRAIN)}  # of an application that has not started
    assert reported == seen


async def test_other_methods_are_refused(start):
    gateway = await start(token="t")
    for path, allowed in ROUTES:
        for method in METHODS:
            answer = await gateway.client.request(method, path.format(rollout_id="r1"), headers=SHOWN)
            if method != allowed.upper():
                assert (answer.status_code, answer.headers["allow"]) == (405, allowed.upper())
    for path in ("/", "/docs", "/redoc", "/v1/rollout/init/", "/v1/rollout", "/health/x", "//health", "/openapi.yaml"):
        assert (await gateway.client.get(path, headers=SHOWN)).status_code == 404, path
        assert (await gateway.client.get(path)).status_code == 401, path


async def fuzz(gateway, *options):
    """Run schemathesis in a process of its own; what it says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{gateway.client.base_url}/openapi.json",
        "--no-color",
        "--checks",
        ",".join(CHECKS),
        "--generation-deterministic",
        "--suppress-health-check",
        "all",
        "--request-timeout",
        "10",
        *options,
        cwd="/tmp",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    reported, _ = await process.communicate()
    assert process.returncode == 0, reported.decode()
    return reported.decode()


@pytest.mark.slow
@pytest.mark.parametrize("token", ["t", pytest.param(None, marks=pytest.mark.long)])
async def test_nothing_is_found_by_fuzzing(start, trainer, token):
    """positive_data_acceptance is left out: nearly every server_url is refused by the target policy."""
    gateway = await start(token=token)
    header = ["--header", f"Authorization: Bearer {token}"] if token else []
    reported = await fuzz(gateway, "--phases", "fuzzing", "--max-examples", "100", "--exclude-path", DRAIN, *header)
    assert "Tested: 8" in reported
    await gateway.untouched()
    await gateway.client.aclose()


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("token", [None, "t"])
async def test_nothing_is_found_by_long_fuzzing(start, token):
    gateway = await start(token=token)
    header = ["--header", f"Authorization: Bearer {token}"] if token else []
    await fuzz(gateway, "--phases", "coverage,fuzzing", "--max-examples", "300", "--exclude-path", DRAIN, *header)
