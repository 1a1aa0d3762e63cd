"""The requests of Open WebUI, as its version 0.12 makes them. The package itself is too large to install.

Its routers/openai.py, routers/tasks.py and utils/middleware.py have them.
"""

import json
import urllib.request

from checks import BASE_URL, IMAGE_TOKENS, IMAGE_URL, KEY, MODEL, check, run

HEADERS = {
    "Content-Type": "application/json",
    "Authorization": f"Bearer {KEY}",
    "X-OpenWebUI-User-Name": "somebody",
    "X-OpenWebUI-Chat-Id": "1",
}
SYSTEM = {"role": "system", "content": "Be brief."}
FOX = {"role": "user", "content": "Tell me a story about a fox."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search_web",
            "description": "Search the web.",
            "parameters": {
                "properties": {
                    "query": {"description": "What to look for", "type": "string", "maxLength": 12},
                    "count": {"default": 5, "type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["query"],
                "type": "object",
            },
        },
    }
]
TITLE = """### Task:
Generate a concise title summarizing the chat history.
### Output:
JSON format: { "title": "your concise title here" }
### Chat History:
<chat_history>
USER: Tell me a story about a fox.
</chat_history>"""


def request(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(f"{BASE_URL}{path}", data, HEADERS)
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=120)


def events(body):
    """The events of a stream, as Open WebUI reads them: lines that begin with "data:"."""
    with request("/chat/completions", body) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = [line.decode().strip() for line in answer]
    data = [line.removeprefix("data:").strip() for line in lines if line]
    assert data.pop() == "[DONE]"
    return [json.loads(each) for each in data]


def chat(*messages, **fields):
    """What the page sends, with its tools and with token counts asked for."""
    asked = {"stream": True, "model": MODEL, "messages": list(messages), "tools": TOOLS, **fields}
    return events(asked | {"stream_options": {"include_usage": True}})


@check
def list_of_models():
    with request("/models") as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == [MODEL]


@check
def page_with_tools():
    found = chat(SYSTEM, FOX, seed=1)
    assert found[-1]["usage"]["completion_tokens"] > 0
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in found if each["choices"])


@check
def page_with_the_parameters_of_its_settings():
    chat(FOX, temperature=0.8, top_k=40, top_p=0.9, min_p=0.05, max_tokens=8, stop=["zzz"], seed=1)
    chat(FOX, frequency_penalty=0.1, presence_penalty=0.1, repeat_penalty=1.1, num_ctx=2048, max_tokens=8)


@check
def call_and_its_result():
    found = chat(FOX, tool_choice="required", parallel_tool_calls=False, seed=2, max_tokens=200)
    deltas = [each["choices"][0]["delta"] for each in found if each["choices"]]
    (call,) = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert json.loads(call["function"]["arguments"])["query"] is not None
    call = {name: call[name] for name in ("id", "type", "function")}
    asked = {"role": "assistant", "content": "", "tool_calls": [call], "usage": found[-1]["usage"]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "Nothing found."}
    assert chat(FOX, asked, result, max_tokens=8)[-1]["usage"]["prompt_tokens"] > 0


@check
def image_that_was_uploaded():
    image = {"type": "image_url", "image_url": {"url": IMAGE_URL}}
    seen = {"role": "user", "content": [{"type": "text", "text": FOX["content"]}, image]}
    counts = [chat(SYSTEM, each, max_tokens=4)[-1]["usage"]["prompt_tokens"] for each in (FOX, seen)]
    assert counts[1] == counts[0] + IMAGE_TOKENS


@check
def answer_that_goes_on():
    begun = {"role": "assistant", "content": "Once upon a time"}
    found = chat(FOX, begun, max_tokens=8, continue_final_message=True, add_generation_prompt=False)
    assert found[-1]["usage"]["completion_tokens"] > 0


@check
def title_of_a_chat():
    asked = {"model": MODEL, "messages": [{"role": "user", "content": TITLE}], "stream": False}
    with request("/chat/completions", asked) as answer:
        assert json.load(answer)["choices"][0]["message"]["content"]


run()
