"""The names of the Osmosis SDK 0.2.14, at the root, in rollout, and in the deeper modules."""

import importlib
import subprocess
import sys

import pytest

import osmosis_grpc
from osmosis_grpc.rollout import (
    AgentLoopValidationError,
    RolloutAgentLoop,
    ValidationError,
    ValidationResult,
    validate_agent_loop,
    validate_and_report,
)
from osmosis_grpc.rollout.server import DEFAULT_PORT, ServeError, serve_agent_loop
from osmosis_grpc.rollout.server.api_key import API_KEY_PREFIX, generate_api_key, validate_api_key
from osmosis_grpc.testing.calculator import CalculatorAgent

ROOT = """
    CompletionsResult InitResponse OpenAIFunctionToolSchema OsmosisLLMClient OsmosisRolloutError OsmosisServerError
    OsmosisTimeoutError OsmosisTransportError OsmosisValidationError RolloutAgentLoop RolloutContext RolloutMetrics
    RolloutRequest RolloutResponse RolloutResult __version__ create_app get_agent_loop list_agent_loops osmosis_reward
    register_agent_loop
"""
CORE = """
    AgentLoopNotFoundError CompletionUsage CompletionsChoice CompletionsRequest CompletionsResponse
    DEFAULT_MAX_METADATA_SIZE_BYTES InitResponse LLMClientProtocol MessageDict OpenAIFunctionCallSchema
    OpenAIFunctionParametersSchema OpenAIFunctionParsedSchema OpenAIFunctionPropertySchema OpenAIFunctionSchema
    OpenAIFunctionToolCall OpenAIFunctionToolSchema OsmosisRolloutError OsmosisServerError OsmosisTimeoutError
    OsmosisTransportError OsmosisValidationError RolloutAgentLoop RolloutContext RolloutMetrics RolloutRequest
    RolloutResponse RolloutResult RolloutStatus SamplingParamsDict ToolArgumentError ToolExecutionError ToolResponse
    get_max_metadata_size_bytes set_max_metadata_size_bytes
"""
ROLLOUT = f"""
    {CORE} AgentLoopRegistry AgentLoopValidationError CompletionsResult DEFAULT_HOST DEFAULT_PORT OsmosisLLMClient
    RolloutClientSettings RolloutServerSettings RolloutSettings ServeError ValidationError ValidationResult configure
    count_messages_by_role create_app create_tool_error_result create_tool_result execute_tool_calls get_agent_loop
    get_message_content get_message_role get_settings get_tool_call_info is_assistant_message is_tool_message
    is_user_message list_agent_loops normalize_stop parse_tool_arguments parse_tool_calls register_agent_loop
    reset_settings serialize_tool_result serve_agent_loop unregister_agent_loop validate_agent_loop validate_and_report
"""
MODULES = {
    "": ROOT,
    ".rollout": ROLLOUT,
    ".rollout.core": CORE,
    ".rollout.core.base": "RolloutAgentLoop RolloutContext RolloutResult",
    ".rollout.core.llm_client": "LLMClientProtocol",
    ".rollout.core.schemas": "CompletionsRequest InitResponse MessageDict RolloutMetrics RolloutRequest RolloutStatus",
    ".rollout.core.exceptions": "OsmosisRolloutError ToolArgumentError",
    ".rollout.client": "CompletionsResult OsmosisLLMClient",
    ".rollout.config": "RolloutSettings get_settings",
    ".rollout.config.settings": "RolloutSettings get_settings",
    ".rollout.server": "DEFAULT_HOST DEFAULT_PORT ServeError create_app serve_agent_loop validate_and_report",
    ".rollout.server.app": "create_app",
    ".rollout.server.serve": "DEFAULT_HOST DEFAULT_PORT ServeError serve_agent_loop validate_and_report",
    ".rollout.tools": "execute_tool_calls get_tool_call_info parse_tool_arguments serialize_tool_result",
    ".rollout.validator": "AgentLoopValidationError ValidationError ValidationResult validate_agent_loop",
}
INSTEAD = {
    "rollout.network.detect_public_ip": "a server is registered nowhere",
    "rollout.detect_public_ip": "a server is registered nowhere",
    "rollout.network.PublicIPDetectionError": "a server is registered nowhere",
    "rollout.validate_ipv4": "use the module ipaddress",
    "rollout.is_private_ip": "use the module ipaddress",
    "rollout.is_valid_hostname_or_ip": "use the module ipaddress",
    "rollout.testing.patch_httpx_for_mock_trainer": "run create_mock_trainer_app",
    "evaluate_rubric": ": in a grader, ask a model",
    "osmosis_rubric": ": compute the reward",
}
"""A name that is not here, and a part of the sentence that says what to use."""


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.row("SDK S6")
def test_a_module_has_the_names_of_the_sdk(module):
    opened = importlib.import_module(f"osmosis_grpc{module}")
    for name in MODULES[module].split():
        assert getattr(opened, name) is not None
        if name != "__version__":
            assert name in dir(opened)


@pytest.mark.parametrize("path", INSTEAD)
@pytest.mark.row("SDK S6")
def test_a_name_without_meaning_here_says_what_to_use(path):
    module, _, name = f"osmosis_grpc.{path}".rpartition(".")
    with pytest.raises(ImportError, match=rf"^{name} is not in osmosis_grpc.*{INSTEAD[path]}"):
        exec(f"from {module} import {name}")


@pytest.mark.row("SDK S6")
def test_the_root_and_rollout_have_the_same_objects():
    rollout = importlib.import_module("osmosis_grpc.rollout")
    for name in set(ROOT.split()) - {"__version__", "osmosis_reward"}:
        assert getattr(osmosis_grpc, name) is getattr(rollout, name)


@pytest.mark.slow
@pytest.mark.row("SDK S6")
def test_importing_the_root_and_rollout_imports_nothing_heavy():
    program = (
        "import sys, osmosis_grpc, osmosis_grpc.rollout, osmosis_grpc.rollout.core, osmosis_grpc.rollout.server\n"
        "print(sorted(sys.modules.keys() & {'pydantic', 'fastapi', 'aiohttp', 'uvicorn', 'grpc'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.row("SDK S6")
def test_a_report_is_printed(capsys):
    assert validate_and_report(CalculatorAgent())
    assert capsys.readouterr().out.startswith("agent loop calculator: ")
    bad = type("Bad", (CalculatorAgent,), {"get_tools": lambda self, request: [{"type": "function"}]})()
    assert not validate_and_report(bad, verbose=True)
    assert "MISSING_FUNCTION" in capsys.readouterr().err


@pytest.mark.row("SDK S6")
def test_a_result_of_the_validator_is_true_or_false():
    asked = []

    class Agent(RolloutAgentLoop):
        name = "agent"

        def get_tools(self, request):
            asked.append(request)
            return []

        async def run(self, ctx): ...

    request = osmosis_grpc.RolloutRequest(rollout_id="mine")
    assert validate_agent_loop(Agent(), request=request)
    assert asked == [request]
    error = ValidationError("CODE", "text", field="tools[0]")
    assert str(error) == "[CODE] tools[0]: text"
    with pytest.raises(AgentLoopValidationError) as raised:
        ValidationResult(valid=False, errors=[error]).raise_if_invalid()
    assert raised.value.errors == [error]


@pytest.mark.row("SDK S6")
@pytest.mark.parametrize(
    ("tools", "code", "field"),
    [
        (None, "GET_TOOLS_RETURNS_NONE", "get_tools()"),
        (7, "GET_TOOLS_INVALID_TYPE", "get_tools()"),
        ([7], "INVALID_TOOL_TYPE", "tools[0]"),
        ([{"function": {"name": "f"}}], "MISSING_TOOL_TYPE", "tools[0].type"),
        ([{"type": "function", "function": 7}], "INVALID_FUNCTION_TYPE", "tools[0].function"),
        ([{"type": "function", "function": {}}], "MISSING_FUNCTION_NAME", "tools[0].function.name"),
        ([{"type": "function", "function": {"name": " "}}], "INVALID_FUNCTION_NAME", "tools[0].function.name"),
    ],
)
def test_the_codes_of_the_sdk_name_what_is_wrong(tools, code, field):
    agent = type("Agent", (CalculatorAgent,), {"get_tools": lambda self, request: tools})()
    result = validate_agent_loop(agent)
    assert not result.valid
    assert (code, field) in [(error.code, error.field) for error in result.errors]


@pytest.mark.row("SDK S6")
def test_a_generated_key_is_equal_to_itself_only():
    key = generate_api_key()
    assert key.startswith(API_KEY_PREFIX)
    assert validate_api_key(key, key)
    assert not validate_api_key(generate_api_key(), key)
    assert not validate_api_key(None, key)


@pytest.mark.row("SDK S6")
def test_serve_error_is_raised_for_parameters_that_do_not_go_together():
    assert DEFAULT_PORT == 9000
    with pytest.raises(ServeError, match="local_debug"):
        serve_agent_loop(CalculatorAgent(), local_debug=True, api_key="key")
