"""Instructor: typed replies through a tool, through a JSON schema, and as a stream."""

import instructor
from case import PROMPT, Answer, case, run
from openai import OpenAI

ASKED = {"model": "policy", "messages": [{"role": "user", "content": PROMPT}], "response_model": Answer}


@case
def structured():
    return instructor.from_openai(OpenAI()).create(**ASKED)


@case
def structured_json():
    return instructor.from_openai(OpenAI(), mode=instructor.Mode.JSON_SCHEMA).create(**ASKED)


@case
def structured_stream():
    *_, last = instructor.from_openai(OpenAI()).create_partial(**ASKED)
    return last


run()
