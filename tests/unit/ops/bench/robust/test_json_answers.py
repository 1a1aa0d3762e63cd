"""What the benchmark of JSON answers asks for, and how it judges what comes."""

from ops.bench.robust.json_answers import Answers, problem_of, requests

SCHEMA = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}, "required": ["day"]}
GOOD = '{"day": "2024-02-29"}'


def test_what_is_wrong_with_an_answer() -> None:
    assert problem_of(SCHEMA, GOOD) == ""
    assert "date" in problem_of(SCHEMA, '{"day": "2023-02-29"}')
    assert "required" in problem_of(SCHEMA, "{}")
    assert problem_of(SCHEMA, '{"day": ')


def answer(*choices: tuple[str, str]) -> dict[str, object]:
    found = [{"message": {"content": text}, "finish_reason": reason} for text, reason in choices]
    return {"choices": found, "usage": {"completion_tokens": 5}}


def test_answers_are_counted() -> None:
    answers = Answers()
    answers.add(SCHEMA, 200, answer((GOOD, "stop"), ('{"day', "length"), ("{}", "stop")))
    answers.add(SCHEMA, 400, {"error": {"message": "no"}})
    assert (answers.valid, answers.cut_off, len(answers.problems), answers.count) == (1, 1, 2, 4)
    assert answers.followed == {"type": 1, "properties": 1, "format": 1, "required": 1}
    assert answers.tokens == 5
    assert answers.problems[0].endswith(str(SCHEMA).replace("'", '"'))
    assert answers.problems[1].startswith("400 ")


def test_requests_ask_for_enough_answers_and_every_second_one_forks() -> None:
    asked = list(requests("m", 10, seed=2))
    assert [body["n"] for _, body in asked] == [1, 2, 1, 2, 1, 2, 1]
    for schema, body in asked:
        assert body["response_format"]["json_schema"]["schema"] == schema
        assert body["response_format"]["json_schema"]["strict"]
    assert [schema for schema, _ in requests("m", 10, seed=2)] == [schema for schema, _ in asked]
    assert [schema for schema, _ in requests("m", 10, seed=3)] != [schema for schema, _ in asked]
