"""/v1/rerank and /v1/score through the processes: their numbers are the cosines of /v1/embeddings."""

from typing import Any

import pytest
import requests

from tests.support.deployment import Deployment

TEXTS = ["a fox", "A fox in the snow.", "What is 7 + 5?", "The owl told a story."]


def post(deployment: Deployment, path: str, **body: Any) -> Any:
    answer = requests.post(deployment.url + path, json={"model": "quire-tiny", **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_scores_are_the_cosines_of_embeddings(deployment: Deployment) -> None:
    query, *documents = (one["embedding"] for one in post(deployment, "/v1/embeddings", input=TEXTS)["data"])
    cosines = [sum(a * b for a, b in zip(query, each, strict=True)) for each in documents]
    scores = post(deployment, "/v1/score", text_1=TEXTS[0], text_2=TEXTS[1:])["data"]
    assert [one["score"] for one in scores] == pytest.approx(cosines, abs=1e-5)
    ranked = post(deployment, "/v1/rerank", query=TEXTS[0], documents=TEXTS[1:])["results"]
    assert [one["relevance_score"] for one in ranked] == pytest.approx(
        sorted(cosines, reverse=True), abs=1e-5
    )
    assert [cosines[one["index"]] for one in ranked] == sorted(cosines, reverse=True)
