"""CrewAI: a crew of one agent with one task."""

from case import BASE_URL, PROMPT, Answer, case, multiply, run
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


def crew(**task):
    model = LLM("openai/policy", base_url=BASE_URL, stream=task.pop("stream", False))
    agent = Agent(role="Clerk", goal="Answer", backstory="A clerk.", llm=model, tools=[tool("multiply")(multiply)])
    return Crew(agents=[agent], tasks=[Task(description=PROMPT, expected_output="A number", agent=agent, **task)])


@case
def tools():
    return crew().kickoff().raw


@case
def stream():
    return crew(stream=True).kickoff().raw


@case
def structured():
    return crew(output_pydantic=Answer).kickoff().pydantic


run()
