"""LlamaIndex: an agent of functions."""

from case import API_KEY, BASE_URL, PROMPT, Answer, case, multiply, run
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.llms.openai_like import OpenAILike

MODEL = OpenAILike(
    model="policy", api_base=BASE_URL, api_key=API_KEY, is_chat_model=True, is_function_calling_model=True
)


def agent(**options):
    return FunctionAgent(tools=[multiply], llm=MODEL, system_prompt="Be short.", **options)


@case
async def tools():
    return str(await agent(streaming=False).run(PROMPT))


@case
async def stream():
    handler = agent().run(PROMPT)
    text = "".join([event.delta async for event in handler.stream_events() if isinstance(event, AgentStream)])
    await handler
    return text


@case
def structured():
    return MODEL.as_structured_llm(Answer).complete(PROMPT).raw


run()
