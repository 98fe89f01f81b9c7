"""A program that gives up soon and asks again. Prints what it has read: impatient.py CLIENT SECONDS."""

import json
import os
import sys

URL, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]


def of_httpx(seconds):
    import httpx

    headers = {"authorization": f"Bearer {KEY}"}

    def ask(messages):
        while True:
            try:
                body = {"model": "policy", "messages": messages}
                response = httpx.post(f"{URL}/chat/completions", json=body, headers=headers, timeout=seconds)
                return response.json()["choices"][0]["message"]["content"]
            except httpx.TransportError:
                pass

    return ask


def of_http(seconds):
    """A client that closes its connection only when it has asked again."""
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    url = urlsplit(URL)
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}

    def ask(messages):
        body, before = json.dumps({"model": "policy", "messages": messages}), None
        while True:
            connection = HTTPConnection(url.netloc, timeout=seconds)
            connection.request("POST", f"{url.path}/chat/completions", body, headers)
            if before is not None:
                before.close()
            try:
                return json.loads(connection.getresponse().read())["choices"][0]["message"]["content"]
            except TimeoutError:
                before = connection

    return ask


def of_openai(seconds):
    import openai

    client = openai.OpenAI(base_url=URL, api_key=KEY, timeout=seconds, max_retries=50)
    return lambda messages: client.chat.completions.create(model="policy", messages=messages).choices[0].message.content


def of_anthropic(seconds):
    import anthropic

    client = anthropic.Anthropic(base_url=URL, api_key=KEY, timeout=seconds, max_retries=50)
    return lambda messages: client.messages.create(model="policy", max_tokens=99, messages=messages).content[0].text


ask = {"http": of_http, "httpx": of_httpx, "openai": of_openai, "anthropic": of_anthropic}[sys.argv[1]](
    float(sys.argv[2])
)
messages = [{"role": "user", "content": "What is 2 + 3?"}]
for turn in range(2):
    messages += [{"role": "assistant", "content": ask(messages)}, {"role": "user", "content": f"turn {turn}"}]
print(json.dumps(messages[:-1]))
