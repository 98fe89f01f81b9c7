"""LangGraph: a graph of a model and its tools."""

from case import PROMPT, Answer, case, multiply, run
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

ASKED = {"messages": [{"role": "user", "content": PROMPT}]}


def graph():
    model = ChatOpenAI(model="policy").bind_tools([multiply])

    async def ask(state):
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", ask)
    builder.add_node("tools", ToolNode([multiply]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition, {"tools": "tools", END: END})
    builder.add_edge("tools", "model")
    return builder.compile()


@case
async def tools():
    return (await graph().ainvoke(ASKED))["messages"][-1].text


@case
async def stream():
    chunks = graph().astream(ASKED, stream_mode="messages")
    return "".join([chunk.text async for chunk, about in chunks if about["langgraph_node"] == "model"])


@case
async def structured():
    return await ChatOpenAI(model="policy").with_structured_output(Answer, method="json_schema").ainvoke(PROMPT)


run()
