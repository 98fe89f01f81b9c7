"""What to write instead of the names of older systems that have no object here. {} is the name."""

_AGENTIC = "import {} from osmosis_grpc.agentic"
_JUDGE = (
    "in a grader, ask a model with get_rollout_context().chat(messages), whose chats are for judging, or use the "
    "client of your provider"
)
_REWARD = "compute the reward in the agent and pass it to ctx.complete(messages, reward=...)"
_ADDRESS = "a server is registered nowhere, so it does not look up its own address"
_IP = "use the module ipaddress of the standard library"
_RUN = "run the workflow without a server with osmosis_grpc.testing.run_rollout(WorkflowRunnable(...), policy)"
_WIRE = "the server reads and writes the bodies of POST /rollout itself; a trainer is osmosis_grpc.trainer.Trainer"
_TRAINER = "a trainer is osmosis_grpc.trainer.Trainer, and trainer.rollout(...) returns the outcome"
_TOKENS = "pass api_key to create_rollout_server, or a token to osmosis-grpc serve --token"
_TASKS = "with HarborBackend, metadata['task'] of the request names the task (docs/boxes.md)"
_SESSION = "read the conversation in the grader: ctx.sample.messages"
_COMMAND = "use the command osmosis-grpc ({})"
_RUNS = "run an agent over a dataset with osmosis-grpc test or eval"
_DATASET = "read a dataset with osmosis-grpc test -d FILE, or with a library such as pyarrow"
_PROMPT = "write the prompt as a text, for example with str.format"
_FACTORY = "make the object with its class: AgenticRollout(AgenticRolloutConfig(agent_type=...), llm_generate_func)"

INSTEAD = {
    "AgenticRollout": _AGENTIC,
    "AgenticRolloutConfig": _AGENTIC,
    "BaseAgent": _AGENTIC,
    "BaseAgenticTool": _AGENTIC,
    "StepType": _AGENTIC,
    "Trajectory": _AGENTIC,
    "TrajectoryStep": _AGENTIC,
    "evaluate_rubric": _JUDGE,
    "osmosis_rubric": _REWARD,
    "ControllerAuth": _TOKENS,
    "MultiTurnMode": "a rollout has any number of samples, and each is trained as one conversation",
    "HarborAgentWorkflowContext": _TASKS,
    "OsmosisInstalledAgent": _TASKS,
    "ResultCallback": "an outcome reaches its trainer without a callback of yours; tests use run_rollout",
    "InProcessDriver": _RUN,
    "RolloutDriver": _TRAINER,
    "RolloutOutcome": "import RolloutOutcome from osmosis_grpc.trainer",
    "ExecutionRequest": _RUN,
    "ExecutionResult": _RUN,
    "ExecutionOutcome": _RUN,
    "RolloutProgress": "ask the server for the status of a rollout: osmosis-grpc list, or ListRollouts",
    "StrandsAgentSampleSource": _SESSION,
    "coerce_output": "return an AgentWorkflowOutput, a list of messages or None from run()",
    "resolved_agent_name": "the name of a workflow is WorkflowRunnable(...).name",
    "AppState": "create_app returns the application, and a server's rollouts are listed by osmosis-grpc list",
    "PublicIPDetectionError": _ADDRESS,
    "detect_from_cloud_metadata": _ADDRESS,
    "detect_from_external_services": _ADDRESS,
    "detect_public_ip": _ADDRESS,
    "is_private_ip": _IP,
    "is_valid_hostname_or_ip": _IP,
    "validate_ipv4": _IP,
    "patch_httpx_for_mock_trainer": "run create_mock_trainer_app() with uvicorn, and pass its URL as server_url",
    "load_agent_loop": "load an agent loop with importlib, or name it to osmosis-grpc serve -m MODULE:ATTR",
}
"""The sentences of names."""

BY_MODULE = {
    "eval.rubric": _JUDGE,
    "rollout.cli": _COMMAND.format("serve, test, eval or validate"),
    "rollout.cli_utils": _COMMAND.format("serve, test, eval or validate"),
    "rollout.client": _TRAINER,
    "rollout.console": "print with rich, which was below it",
    "rollout.controller": _TRAINER,
    "rollout.driver": _TRAINER,
    "rollout.http_driver": _TRAINER,
    "rollout.eval": _RUNS,
    "rollout.eval.common.dataset": _DATASET,
    "rollout.server": _WIRE,
    "rollout.server.registration": _ADDRESS,
    "rollout.trajectory": "write trajectories with osmosis-grpc export --format atif",
    "rollout.types": _WIRE,
    "rollout.types.harbor": _TASKS,
    "rollout": _WIRE,
}
"""The sentences of the other names of a module, and of the modules below it."""

LIBRARY = {
    "AgentFactory": _FACTORY,
    "get_global_tool_registry": "use register_tool, register_tool_instance and list_tools",
    "AgentRegistry": "use register_agent, get_agent_class and list_agents",
    "CodebaseState": "read the phases of a CodingAgent in its trajectory",
    "SWEPhase": "read the phases of a CodingAgent in its trajectory",
    "GeneralAgent": 'use agent_type="tool", whose model calls tools natively',
    "SweAgent": 'use agent_type="coding" with a sandbox, or a Harbor task in a box (docs/boxes.md)',
    "OpenAIFunction": "write the schema as a dict, or with create_openai_tool_schema",
    "OpenAIFunctionParameters": "write the schema as a dict, or with create_openai_tool_schema",
    "OpenAIFunctionToolSchema": "write the schema as a dict, or with create_openai_tool_schema",
    "PromptBuilder": _PROMPT,
    "PromptLibrary": _PROMPT,
    "SafeMathEvaluator": 'name the tool in tools_config={"calculator": {}}',
    "ToolFactory": "make tools with their classes, or name them in tools_config",
    "build_code_prompt": _PROMPT,
    "build_prompt": _PROMPT,
    "build_react_prompt": _PROMPT,
    "build_swe_prompt": _PROMPT,
    "create_agent": _FACTORY,
    "create_agents": _FACTORY,
    "create_llm_client": "make an OpenAIFunction(LLMConfig(...)), or an LLMAPIClient",
    "create_tool": "make tools with their classes, or name them in tools_config",
    "create_tools": "make tools with their classes, or name them in tools_config",
    "dump_trajectory": "write trajectories with dump_trajectories",
    "format_tool_error": "a tool that raises has the error as its result",
    "get_global_agent_factory": _FACTORY,
    "get_global_tool_factory": "make tools with their classes, or name them in tools_config",
    "save_trajectory_as_messages": 'write trajectories with dump_trajectories(..., format="messages")',
    "test_llm_connection": "call the LLM function once: await function(messages)",
    "validate_tool_parameters": "the arguments of a call are checked before the tool runs",
}
"""The sentences of the Agentic Rollout Library's names."""
