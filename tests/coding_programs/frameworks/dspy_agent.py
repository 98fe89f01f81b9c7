"""DSPy: a ReAct agent, a stream, and a typed signature."""

import dspy
from case import BASE_URL, PROMPT, case, multiply, run

dspy.configure(lm=dspy.LM("openai/policy", api_base=BASE_URL, cache=False))


@case
def tools():
    return dspy.ReAct("question -> answer", tools=[multiply])(question=PROMPT).answer


@case
async def stream():
    listener = dspy.streaming.StreamListener(signature_field_name="answer")
    program = dspy.streamify(dspy.Predict("question -> answer"), stream_listeners=[listener])
    *_, last = [chunk async for chunk in program(question=PROMPT)]
    return last.answer


@case
def structured():
    return {"value": dspy.Predict("question -> value: int")(question=PROMPT).value}


@case
def structured_json():
    with dspy.context(adapter=dspy.JSONAdapter()):
        return structured()


run()
