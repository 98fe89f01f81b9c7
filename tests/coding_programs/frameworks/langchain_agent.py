"""LangChain: an agent, a stream of its tokens, and a structured reply."""

from case import PROMPT, Answer, case, multiply, run
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

ASKED = {"messages": [{"role": "user", "content": PROMPT}]}


def agent(**options):
    return create_agent(ChatOpenAI(model="policy"), [multiply], system_prompt="Be short.", **options)


@case
def tools():
    return agent().invoke(ASKED)["messages"][-1].text


@case
def stream():
    chunks = agent().stream(ASKED, stream_mode="messages")
    return "".join(chunk.text for chunk, about in chunks if about["langgraph_node"] == "model")


@case
def structured():
    return agent(response_format=Answer).invoke(ASKED)["structured_response"]


@case
def structured_model():
    return ChatOpenAI(model="policy").with_structured_output(Answer).invoke(PROMPT)


@case
def responses_tools():
    model = ChatOpenAI(model="policy", use_responses_api=True)
    return create_agent(model, [multiply]).invoke(ASKED)["messages"][-1].text


run()
