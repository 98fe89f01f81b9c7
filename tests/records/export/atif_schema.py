"""A JSON Schema of ATIF v1.7, written from the facts of its RFC, and the rules that a schema cannot express."""

from jsonschema import Draft202012Validator

TEXT, INTEGER, COUNT = {"type": "string"}, {"type": "integer"}, {"type": "integer", "minimum": 0}
OBJECT = {"type": "object"}


def closed(required, **properties):
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def listed(items, **more):
    return {"type": "array", "items": items, **more}


IMAGE = closed(
    ["media_type", "path"], media_type={"enum": ["image/jpeg", "image/png", "image/gif", "image/webp"]}, path=TEXT
)
PART = {
    "oneOf": [
        closed(["type", "text"], type={"const": "text"}, text=TEXT),
        closed(["type", "source"], type={"const": "image"}, source=IMAGE),
    ]
}
CONTENT = {"oneOf": [TEXT, listed(PART)]}
METRICS = closed(
    [],
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    cached_tokens=COUNT,
    cost_usd={"type": "number"},
    prompt_token_ids=listed(INTEGER),
    completion_token_ids=listed(INTEGER),
    logprobs=listed({"type": "number"}),
    extra=OBJECT,
)
CALL = closed(
    ["tool_call_id", "function_name", "arguments"],
    tool_call_id=TEXT,
    function_name=TEXT,
    arguments=OBJECT,
    extra=OBJECT,
)
RESULT = closed([], source_call_id=TEXT, content=CONTENT, subagent_trajectory_ref=listed(OBJECT), extra=OBJECT)
STEP = closed(
    ["step_id", "source", "message"],
    step_id={"type": "integer", "minimum": 1},
    timestamp=TEXT,
    source={"enum": ["system", "user", "agent"]},
    model_name=TEXT,
    reasoning_effort={"type": ["string", "number"]},
    message=CONTENT,
    reasoning_content=TEXT,
    tool_calls=listed(CALL),
    observation=closed(["results"], results=listed(RESULT)),
    metrics=METRICS,
    is_copied_context={"type": "boolean"},
    llm_call_count=COUNT,
    extra=OBJECT,
)
STEP["if"] = {"properties": {"source": {"enum": ["system", "user"]}}}
STEP["then"] = {
    "properties": dict.fromkeys(["model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"], False)
}
FINAL = closed(
    [],
    total_prompt_tokens=COUNT,
    total_completion_tokens=COUNT,
    total_cached_tokens=COUNT,
    total_cost_usd={"type": "number"},
    total_steps=COUNT,
    extra=OBJECT,
)
AGENT = closed(
    ["name", "version"], name=TEXT, version=TEXT, model_name=TEXT, tool_definitions=listed(OBJECT), extra=OBJECT
)
SCHEMA = closed(
    ["schema_version", "agent", "steps"],
    schema_version={"const": "ATIF-v1.7"},
    session_id=TEXT,
    trajectory_id=TEXT,
    agent=AGENT,
    steps=listed(STEP, minItems=1),
    notes=TEXT,
    final_metrics=FINAL,
    continued_trajectory_ref=TEXT,
    subagent_trajectories=listed({"$ref": "#"}),
    extra=OBJECT,
)
_VALIDATOR = Draft202012Validator(SCHEMA)


def check(trajectory):
    """Fails if a trajectory is not valid ATIF v1.7."""
    _VALIDATOR.validate(trajectory)
    for number, step in enumerate(trajectory["steps"], 1):
        assert step["step_id"] == number
        calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        for result in step.get("observation", {"results": ()})["results"]:
            assert result.get("source_call_id") in {None, *calls}
    subagents = trajectory.get("subagent_trajectories", ())
    ids = [subagent["trajectory_id"] for subagent in subagents]
    assert len(ids) == len(set(ids))
    for subagent in subagents:
        check(subagent)
