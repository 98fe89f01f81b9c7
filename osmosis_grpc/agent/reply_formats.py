"""The parts of a reply as OpenAI's Chat Completions have them."""

from typing import Any

from osmosis_grpc.agent.results import CompletionsResult
from osmosis_grpc.protocol.types.samples import CUTS


def finish_reason_of(result: CompletionsResult) -> str:
    """Return the policy's finish reason; `length` for any reply that was cut. Without one, the reply decides."""
    if result.finish_reason in CUTS:
        return "length"
    return result.finish_reason or ("tool_calls" if result.has_tool_calls else "stop")


def usage_of(result: CompletionsResult) -> dict[str, Any]:
    """Return the token counts; 0 for those that the policy did not give."""
    return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0} | dict(result.usage)


def logprobs_of(result: CompletionsResult) -> dict[str, Any] | None:
    """Return the logprobs; None if they are unknown.

    The texts of the tokens are unknown here, so `token` is token_id:ID, as vLLM writes it.
    """
    if not (result.token_ids and result.logprobs):
        return None
    pairs = zip(result.token_ids, result.logprobs, strict=True)
    keys: dict[str, Any] = {"bytes": None, "top_logprobs": []}
    return {"content": [{"token": f"token_id:{token}", "logprob": value} | keys for token, value in pairs]}
