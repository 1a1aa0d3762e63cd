"""lm-evaluation-harness: log likelihoods of `local-completions`, as transformers has them, and chats."""

import json
import os
import subprocess

from checks import BASE_URL, MODEL, check, run
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

FOLDER = os.environ["CLIENT_MODEL_FOLDER"]
TOLERANCE = 1e-3
PAIRS = [
    ("The fox", " ran through the snow."),
    ("Once upon a time there was an owl.", " It sat in a tree and slept."),
    ("What is 7 + 5?", " 12"),
    ("", "A fox."),
]


def completions(**more):
    return LocalCompletionsAPI(
        model=MODEL,
        base_url=f"{BASE_URL}/completions",
        tokenizer_backend="huggingface",
        tokenizer=FOLDER,
        max_retries=1,
        num_concurrent=1,
        **more,
    )


def instances(kind, arguments):
    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


@check
def log_likelihoods_as_transformers_has_them():
    lm = completions()
    asked = [("The fox", {"until": ["."], "max_gen_toks": 8})]
    (likeliest,) = lm.generate_until(instances("generate_until", asked), disable_tqdm=True)
    pairs = [*PAIRS, ("The fox", likeliest)]
    encoded = [_encoded(lm, *pair) for pair in pairs]
    command = [os.environ["QUIRE_PYTHON"], "-m", "tests.clients.likelihoods", FOLDER]
    root, text = os.environ["QUIRE_ROOT"], json.dumps(encoded)
    made = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=root)
    expected = json.loads(made.stdout)
    found = lm.loglikelihood(instances("loglikelihood", pairs), disable_tqdm=True)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert found[-1][1], "what greedy decoding gives is greedy"
    for (score, _), (due, _) in zip(found, expected, strict=True):
        assert abs(score - due) < TOLERANCE, (found, expected)


def _encoded(lm, context, continuation):
    """The tokens of both, as the harness has them: nothing before a text is its prefix token."""
    if context:
        return lm._encode_pair(context, continuation)
    return [lm.prefix_token_id], lm.tok_encode(continuation)


@check
def several_at_once():
    alone = completions().loglikelihood(instances("loglikelihood", PAIRS), disable_tqdm=True)
    batch = completions(batch_size=4).loglikelihood(instances("loglikelihood", PAIRS), disable_tqdm=True)
    for (one, _), (other, _) in zip(alone, batch, strict=True):
        assert abs(one - other) < TOLERANCE


@check
def generations():
    asked = [("The fox", {"until": ["."], "max_gen_toks": 16}), ("An owl", {"max_gen_toks": 8})]
    first, second = completions().generate_until(instances("generate_until", asked), disable_tqdm=True)
    assert "." not in first
    assert second


@check
def chats():
    lm = LocalChatCompletion(model=MODEL, base_url=f"{BASE_URL}/chat/completions", max_retries=1)
    talk = lm.apply_chat_template([{"role": "user", "content": "Tell me a story about a fox."}])
    (found,) = lm.generate_until(
        instances("generate_until", [(talk, {"max_gen_toks": 8})]), disable_tqdm=True
    )
    assert found


run()
