"""Each grammar is new to all caches, and those that are called malformed are refused for what they are."""

import json

import pytest

from ops.bench.robust.bad_grammars import Bad, bad_grammars
from ops.model_directory.grammars import Vocabulary
from ops.model_directory.settings import SHIPPED_MODEL
from tokenizer_svc.grammars.grammar_main import tried

MALFORMED = [bad for bad in bad_grammars(1) if bad.malformed and bad.param != "tools"]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(SHIPPED_MODEL, 4096, [4])


def test_no_cache_has_one_of_another_number() -> None:
    texts = [json.dumps(bad.fields) for number in (1, 2) for bad in bad_grammars(number) if bad.param]
    assert len(set(texts)) >= len(texts) - 1  # a choice of nothing is always the same
    assert len({bad.name for bad in bad_grammars(1)}) == len(bad_grammars(1))


@pytest.mark.parametrize("bad", MALFORMED, ids=lambda bad: bad.name)
def test_a_malformed_one_is_refused(vocabulary: Vocabulary, bad: Bad) -> None:
    value = bad.fields[bad.param]
    match bad.param:
        case "guided_regex":
            found = tried(vocabulary, "regex", value, False) if len(value) < 65_000 else {"error": "too long"}
        case "guided_choice":
            found = tried(vocabulary, "choice", json.dumps(value), False)
        case "response_format":
            found = tried(vocabulary, "json_schema", json.dumps(value["json_schema"]["schema"]), False)
        case _:
            ((kind, text),) = value.items()
            found = tried(vocabulary, kind, text, False)
    assert found.get("error")
