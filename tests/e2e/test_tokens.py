"""/tokenize and /detokenize through the processes: the tokens are those of an answer's prompt."""

from typing import Any

import requests

from tests.support.deployment import Deployment

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A fox, 東京 and 😀?"}]


def post(deployment: Deployment, path: str, **body: Any) -> Any:
    answer = requests.post(deployment.url + path, json={"model": "quire-tiny", **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_tokens_of_a_conversation_are_those_of_its_answer(deployment: Deployment) -> None:
    asked = {"messages": MESSAGES}
    answer = post(
        deployment, "/v1/chat/completions", **asked, max_tokens=1, return_token_ids=True, temperature=0
    )
    found = post(deployment, "/tokenize", **asked)
    assert found["tokens"] == answer["prompt_token_ids"]
    assert found["count"] == answer["usage"]["prompt_tokens"]


def test_a_text_comes_back(deployment: Deployment) -> None:
    text = MESSAGES[1]["content"]
    answer = post(deployment, "/v1/completions", prompt=text, max_tokens=1, return_token_ids=True)
    found = post(deployment, "/tokenize", prompt=text, return_token_strs=True)
    assert found["tokens"] == answer["choices"][0]["prompt_token_ids"]
    assert len(found["token_strs"]) == found["count"] <= found["max_model_len"]
    plain = post(deployment, "/tokenize", prompt=text, add_special_tokens=False)
    found = post(deployment, "/detokenize", tokens=plain["tokens"])
    assert found == {"prompt": text, "content": text}
