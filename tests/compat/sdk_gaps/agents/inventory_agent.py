"""An agent with tools that depend on the request, and with errors of every kind."""

import logging
from typing import Any

from osmosis_ai.rollout import OsmosisRolloutError, RolloutAgentLoop, RolloutContext, RolloutRequest, RolloutResult
from osmosis_ai.rollout.core.exceptions import ToolExecutionError
from osmosis_ai.rollout.core.schemas import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
)
from osmosis_ai.rollout.tools import create_tool_error_result, create_tool_result, execute_tool_calls
from osmosis_ai.rollout.tools import get_tool_call_info, parse_tool_arguments, serialize_tool_result
from osmosis_ai.rollout.utils import get_message_content, is_tool_message, parse_tool_calls

logger = logging.getLogger(__name__)

STOCK = {"bolt": 12, "nut": 0}


def schema(name: str, description: str, **properties: str) -> OpenAIFunctionToolSchema:
    made = {key: OpenAIFunctionPropertySchema(type=kind) for key, kind in properties.items()}
    parameters = OpenAIFunctionParametersSchema(type="object", properties=made, required=list(made))
    function = OpenAIFunctionSchema(name=name, description=description, parameters=parameters)
    return OpenAIFunctionToolSchema(type="function", function=function)


COUNT = schema("count", "Return how many of an item are in stock.", item="string")
ORDER = schema("order", "Order an item.", item="string", amount="integer")


class InventoryAgent(RolloutAgentLoop):
    name = "inventory"

    def __init__(self, raise_errors: bool = False) -> None:
        self.raise_errors = raise_errors

    def get_tools(self, request: RolloutRequest) -> list:
        return [COUNT, ORDER] if request.metadata.get("can_order") else [COUNT]

    async def call(self, tool_call: dict[str, Any]) -> dict[str, str]:
        call_id, name, args = get_tool_call_info(tool_call)
        if name == "count":
            return create_tool_result(call_id, serialize_tool_result({"item": args["item"], "stock": STOCK[args["item"]]}))
        if name == "order":
            return create_tool_result(call_id, serialize_tool_result(None))
        raise ToolExecutionError(f"no tool {name}", tool_call_id=call_id, tool_name=name)

    async def safe_call(self, tool_call: dict[str, Any]) -> dict[str, str]:
        try:
            return await self.call(tool_call)
        except Exception as error:
            logger.info("tool failed: %s", error)
            return create_tool_error_result(tool_call.get("id", "unknown"), str(error))

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        offered = {tool.function.name for tool in ctx.tools}
        while True:
            try:
                result = await ctx.llm.chat_completions(messages, 0.2, max_tokens=64)
            except OsmosisRolloutError as error:
                return ctx.error(f"model failed: {error}", final_messages=messages)
            messages.append(result.message)
            calls = parse_tool_calls(result.message)
            if not calls:
                return ctx.complete(messages)
            unknown = [call["function"]["name"] for call in calls if call["function"]["name"] not in offered]
            if unknown and self.raise_errors:
                return ctx.error(f"not offered: {', '.join(unknown)}", final_messages=messages)
            messages += await execute_tool_calls(calls, self.call if self.raise_errors else self.safe_call)


def tool_texts(messages: list[dict[str, Any]]) -> list[str]:
    return [get_message_content(message) for message in messages if is_tool_message(message)]


def amounts(messages: list[dict[str, Any]]) -> list[int]:
    calls = [call for message in messages for call in parse_tool_calls(message)]
    return [parse_tool_arguments(call["function"]["arguments"]).get("amount", 0) for call in calls]
