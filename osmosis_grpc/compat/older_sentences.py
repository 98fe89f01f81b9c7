"""What to use instead of the names of older systems that have no object here. NAME stands for the name."""

from collections.abc import Mapping

_JUDGE = (
    "in a grader, ask a model with get_rollout_context().chat(messages), whose chats are for judging, or use the "
    "client of your provider"
)
_ADDRESS = "a server is registered nowhere, so it does not look up its own address"
_WIRE = "the server reads and writes the bodies of POST /rollout itself; a trainer is osmosis_grpc.trainer.Trainer"
_TRAINER = "a trainer is osmosis_grpc.trainer.Trainer, and trainer.rollout(...) returns the outcome"
_TASKS = "with HarborBackend, metadata['task'] of the request names the task (docs/boxes.md)"


def _by_name(names_by_sentence: Mapping[str, str]) -> dict[str, str]:
    return {name: sentence for sentence, names in names_by_sentence.items() for name in names.split()}


INSTEAD = _by_name(
    {
        "import NAME from osmosis_grpc.agentic": (
            "AgenticRollout AgenticRolloutConfig BaseAgent BaseAgenticTool StepType Trajectory TrajectoryStep"
        ),
        _JUDGE: "evaluate_rubric",
        "compute the reward in the agent and pass it to ctx.complete(messages, reward=...)": "osmosis_rubric",
        "pass api_key to create_rollout_server, or a token to osmosis-grpc serve --token": "ControllerAuth",
        "a rollout has any number of samples, and each is trained as one conversation": "MultiTurnMode",
        _TASKS: "HarborAgentWorkflowContext OsmosisInstalledAgent",
        "an outcome reaches its trainer without a callback of yours; tests use run_rollout": "ResultCallback",
        "run the workflow without a server with osmosis_grpc.testing.run_rollout(WorkflowRunnable(...), policy)": (
            "InProcessDriver ExecutionRequest ExecutionResult ExecutionOutcome"
        ),
        _TRAINER: "RolloutDriver",
        "import RolloutOutcome from osmosis_grpc.trainer": "RolloutOutcome",
        "ask the server for the status of a rollout: osmosis-grpc list, or ListRollouts": "RolloutProgress",
        "read the conversation in the grader: ctx.sample.messages": "StrandsAgentSampleSource",
        "return an AgentWorkflowOutput, a list of messages or None from run()": "coerce_output",
        "the name of a workflow is WorkflowRunnable(...).name": "resolved_agent_name",
        "create_app returns the application, and a server's rollouts are listed by osmosis-grpc list": "AppState",
        _ADDRESS: ("PublicIPDetectionError detect_from_cloud_metadata detect_from_external_services detect_public_ip"),
        "use the module ipaddress of the standard library": "is_private_ip is_valid_hostname_or_ip validate_ipv4",
        "run create_mock_trainer_app() with uvicorn, and pass its URL as server_url": "patch_httpx_for_mock_trainer",
        "load an agent loop with importlib, or name it to osmosis-grpc serve -m MODULE:ATTR": "load_agent_loop",
    }
)
"""The sentences for names of the SDK."""

BY_MODULE = _by_name(
    {
        _JUDGE: "eval.rubric",
        "use the command osmosis-grpc (serve, test, eval or validate)": "rollout.cli rollout.cli_utils",
        _TRAINER: "rollout.client rollout.controller rollout.driver rollout.http_driver",
        "print with rich, which was below it": "rollout.console",
        "run an agent over a dataset with osmosis-grpc test or eval": "rollout.eval",
        "read a dataset with osmosis-grpc test -d FILE, or with a library such as pyarrow": (
            "rollout.eval.common.dataset"
        ),
        _ADDRESS: "rollout.server.registration",
        "write trajectories with osmosis-grpc export --to atif": "rollout.trajectory",
        _TASKS: "rollout.types.harbor",
        _WIRE: "rollout rollout.server rollout.types",
    }
)
"""The sentences for all other names of a module and of the modules below it."""

LIBRARY = _by_name(
    {
        "make the object with its class: AgenticRollout(AgenticRolloutConfig(agent_type=...), llm_generate_func)": (
            "AgentFactory create_agent create_agents get_global_agent_factory"
        ),
        "use register_tool, register_tool_instance and list_tools": "get_global_tool_registry",
        "use register_agent, get_agent_class and list_agents": "AgentRegistry",
        "read the phases of a CodingAgent in its trajectory": "CodebaseState SWEPhase",
        'use agent_type="tool", whose model calls tools natively': "GeneralAgent",
        'use agent_type="coding" with a sandbox, or a Harbor task in a box (docs/boxes.md)': "SweAgent",
        "write the schema as a dict, or with create_openai_tool_schema": (
            "OpenAIFunction OpenAIFunctionParameters OpenAIFunctionToolSchema"
        ),
        "write the prompt as a text, for example with str.format": (
            "PromptBuilder PromptLibrary build_code_prompt build_prompt build_react_prompt build_swe_prompt"
        ),
        'name the tool in tools_config={"calculator": {}}': "SafeMathEvaluator",
        "make tools with their classes, or name them in tools_config": (
            "ToolFactory create_tool create_tools get_global_tool_factory"
        ),
        "make an OpenAIFunction(LLMConfig(...)), or an LLMAPIClient": "create_llm_client",
        "write trajectories with dump_trajectories": "dump_trajectory",
        "a tool that raises has the error as its result": "format_tool_error",
        'write trajectories with dump_trajectories(..., format="messages")': "save_trajectory_as_messages",
        "call the LLM function once: await function(messages)": "test_llm_connection",
        "the arguments of a call are checked before the tool runs": "validate_tool_parameters",
    }
)
"""The sentences for names of the Agentic Rollout Library."""
