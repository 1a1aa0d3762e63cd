"""What clients may ask of a text, and what they must not: patterns that would never end, in their process."""

import asyncio
import functools
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import psutil
import pytest
import uvloop

from ops.launcher.acl import Credentials
from ops.launcher.redis_server import RedisServer
from ops.model_directory.grammars import NICENESS, Vocabulary
from ops.model_directory.settings import SHIPPED_MODEL
from proto.rpc.line import Line
from proto.rpc.seal import Seal
from proto.sampling_pb2 import BeamSearch
from proto.tokenizer_pb2 import CallShape, Shape, TextRequest, TextSoFar
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.formats.formats import ThoughtRules
from tokenizer_svc.grammars import shared_verdicts
from tokenizer_svc.grammars import trials as module
from tokenizer_svc.grammars.call_rules import CallRules, Function
from tokenizer_svc.grammars.shared_verdicts import RedisVerdicts
from tokenizer_svc.grammars.trials import Grammars, param_of
from tokenizer_svc.grammars.verdicts import MemoryVerdicts, Verdict, Verdicts

END = 4


@pytest.fixture
async def grammars() -> AsyncIterator[Grammars]:
    found = Grammars(SHIPPED_MODEL, 4096, [END])
    yield found
    await found.close()


def request(**shape: Any) -> TextRequest:
    return TextRequest(shape=Shape(param="guided", **shape))


def schema(value: Any) -> dict[str, str]:
    return {"json_schema": json.dumps(value)}


def tag(begin: str, trigger: str) -> str:
    structure = {"begin": begin, "schema": {"type": "integer"}, "end": "</f>"}
    return json.dumps({"structures": [structure], "triggers": [trigger]})


TAKEN: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (schema({"type": "object"}), ['{"a": [1, {}]}', '{\n  "a": 1\n}'], ["[1]", '{  "a": 1}', '{"a"\t: 1}']),
    (schema({"enum": [1, "b"]}), ["1", '"b"'], ["2"]),
    (schema({"type": "string", "format": "date"}), ['"2026-11-22"'], ['"22.11.2026"']),
    ({"regex": "[a-c]+/x"}, ["abc/x"], ["d/x"]),
    ({"choice": json.dumps(["yes", 'a "b"', "東"])}, ["yes", 'a "b"', "東"], ["no", "yes "]),
    ({"grammar": 'start: "a" b+\nb: /[0-9]/\n'}, ["a12"], ["b1"]),
    ({"grammar": 'root ::= "a" b+\nb ::= [0-9]\n'}, ["a12"], ["b1"]),
    ({"structural_tag": tag("<f=x>", "<f")}, ["hi <f=x>12</f> there", "hi"], ["hi <f=y>12</f>"]),
    ({"structural_tag": '{"format": {"type": "any_text", "excludes": ["b"]}}'}, ["", "a"], ["ab"]),
    ({"choice": json.dumps(["a\x7f", "é\x00"])}, ["a\x7f", "é\x00"], ["a"]),
    (schema({"type": "array", "uniqueItems": True}) | {"lenient": True}, ["[1, 1]"], ["1"]),
    ({"choice": json.dumps([f"w{number}x" for number in range(5000)])}, ["w7x", "w4999x"], ["w7", "w5000x"]),
    ({"grammar": "start: " + " | ".join(f'"w{number}"' for number in range(1900))}, ["w17"], ["w"]),
]


@pytest.mark.timeout(60)
async def test_each_kind_takes_the_texts_that_it_should(grammars: Grammars) -> None:
    vocabulary = Vocabulary(SHIPPED_MODEL, 4096, [END])
    for shape, good, bad in TAKEN:
        grammar = await grammars.grammar_of(request(**shape))
        assert list(grammar.end_tokens) == [END]
        for text in (*good, *bad):
            matcher = vocabulary.matcher(grammar.text)
            tokens = vocabulary._tokenizer.tokenize_str(text)
            whole = matcher.consume_tokens(tokens) and matcher.is_accepting()
            assert whole is (text in good), (shape, text)


BAD: list[tuple[dict[str, Any], str]] = [
    (schema({"type": "strin"}), "strin"),
    (schema({"not": {}}), "not"),
    (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
    (schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum"),
    (schema({"$ref": "http://127.0.0.1/secret"}), "127.0.0.1"),
    (schema({"$ref": "file:///etc/passwd"}), "passwd"),
    (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), ""),
    (
        schema(functools.reduce(lambda inner, _: {"items": inner}, range(300), {})),
        "recursion",
    ),
    ({"regex": "a("}, "unclosed group"),
    ({"regex": "(?=a)b"}, "look-around"),
    ({"regex": "(" * 3000 + ")" * 3000}, ""),
    ({"choice": "[]"}, ""),
    ({"grammar": 'start: (("a"\n'}, "1("),
    ({"grammar": "start: A\nA: /a/ & /b/\n"}, "no text"),
    ({"grammar": 'start: a\na: "x" b\n'}, "b"),
    ({"grammar": 'root ::= "a" (\n'}, ""),
    ({"grammar": 'start: "a" start'}, "Too many items"),
    ({"grammar": "start: " + " | ".join(f'"w{number}"' for number in range(3000))}, "max is 2000"),
    ({"structural_tag": tag("<f=x>", "<g")}, "trigger"),
    ({"structural_tag": "{}"}, "structures"),
    ({"structural_tag": '{"format": {"type": "any_texts"}}'}, "structural_tag: format: Input tag"),
    ({"structural_tag": '{"format": {"type": "regex", "pattern": "a("}}'}, "format: "),
    ({"structural_tag": '{"structures": 7, "triggers": 7}'}, ""),
    ({}, "no grammar"),
    ({"regex": "a" * 70_000}, "65536"),
]


@pytest.mark.timeout(60)
async def test_a_malformed_one_is_told_where_it_is_wrong(grammars: Grammars) -> None:
    await grammars.grammar_of(request(regex="a"))
    process = grammars._child.process
    for shape, said in BAD:
        with pytest.raises(InvalidRequestError) as refused:
            await grammars.grammar_of(request(**shape))
        assert refused.value.param == "guided"
        assert said in str(refused.value), shape
        assert len(str(refused.value)) <= 1000
    assert grammars._child.process is process


HOSTILE: list[dict[str, Any]] = [
    schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1800)}}),
    {"regex": "|".join(f"w{i}x" for i in range(9000))},
    {"regex": "(a{1,1000}){1,1000}" * 200},
    {"regex": "(a|b)*a(a|b){25}" * 50},
    schema({"type": "integer", "multipleOf": 99991, "minimum": 3, "maximum": 10**15}),
    schema({"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(9)]} for i in range(9)]}),
    {"grammar": "start: e\ne: e e e | e e | /a*/ | /[a-z]*/\n"},
]


SLOWER_AND_SLOWER = 'start: (("a"{0,99} "b"?){0,99} "c"?){0,99}'
"""The first mask takes half a millisecond, the twentieth a hundred: there are ever more readings."""


@pytest.mark.timeout(120)
async def test_a_hostile_one_takes_a_bounded_time_and_nobody_else_waits(grammars: Grammars) -> None:
    """It is compiled or refused within its bound of processor time. The loop goes on meanwhile."""
    await grammars.grammar_of(request(regex="a"))
    turns = 0
    for shape in HOSTILE:
        before = _seconds(grammars)
        asked = asyncio.ensure_future(grammars.grammar_of(request(**shape)))
        while not asked.done():
            turns += 1
            await asyncio.sleep(0.001)
        if asked.exception() is not None:
            assert isinstance(asked.exception(), InvalidRequestError)
        assert _seconds(grammars) - before < 2 * module.COMPILE_SECONDS
    # Some end within a millisecond, others take a second.
    assert turns > 2 * len(HOSTILE)
    assert (await grammars.grammar_of(request(regex="b"))).text


def _seconds(grammars: Grammars) -> float:
    """Processor time of the process and of the children that have ended."""
    assert grammars._child.process is not None
    return sum(psutil.Process(grammars._child.process.pid).cpu_times()[:4])


@pytest.mark.timeout(120)
async def test_one_tenant_s_many_do_not_keep_another_waiting(grammars: Grammars) -> None:
    await grammars.grammar_of(request(regex="a"))
    done = list[str]()

    async def ask(tenant: str, regex: str) -> None:
        asked = request(regex=regex)
        asked.tenant = tenant
        await grammars.grammar_of(asked)
        done.append(tenant)

    await asyncio.gather(*(ask("greedy", f"a{{{n}}}") for n in range(1, 60)), ask("other", "b"))
    assert done.index("other") <= 2


@pytest.mark.timeout(60)
async def test_one_that_computes_for_too_long_is_ended(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library does not return to Python, so the child ends. An answer that has begun gets more time."""
    await grammars.grammar_of(request(regex="a"))
    process = grammars._child.process
    monkeypatch.setattr(module, "COMPILE_SECONDS", 0.02)
    with pytest.raises(InvalidRequestError, match=r"more than 0.02 s"):
        await grammars.grammar_of(request(**HOSTILE[0]))
    monkeypatch.undo()
    assert grammars._child.process is process, "the next one does not wait for another process to start"
    resumed = request(**schema({"type": "object", "properties": {f"q{i}": {} for i in range(200)}}))
    resumed.resumed.append(TextSoFar(index=0, token_ids=[5]))
    assert (await grammars.grammar_of(resumed)).text


@pytest.mark.timeout(60)
async def test_one_whose_next_tokens_take_longer_and_longer_is_refused(grammars: Grammars) -> None:
    with pytest.raises(InvalidRequestError, match=r"takes more than|Too many items"):
        await grammars.grammar_of(request(grammar=SLOWER_AND_SLOWER))


@pytest.mark.timeout(60)
async def test_a_function_that_cannot_be_followed_is_named(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = TextRequest(shape=Shape(calls=CallShape(required=True), param="tools"))
    good = Function("good", {"properties": {"a": {"type": "string"}}}, True)

    def rules(*functions: Function) -> CallRules:
        return CallRules(functions, "hermes", ThoughtRules("", {}), required=True)

    assert "good" in (await grammars.grammar_of(asked, rules(good))).text
    many = {"properties": {f"p{number}": {"type": "string"} for number in range(1800)}}
    for parameters, said in (({"not": {}}, "not"), ({"type": "array"}, "'object'"), (many, "0.02 s")):
        if parameters is many:
            monkeypatch.setattr(module, "COMPILE_SECONDS", 0.02)
        bad = Function("bad", parameters, True)
        for functions in ([bad], [bad, good]) if parameters is many else ([bad], [good, bad, good]):
            with pytest.raises(InvalidRequestError, match=rf"function 'bad': .*{said}") as refused:
                await grammars.grammar_of(asked, rules(*functions))
            assert refused.value.param == "tools"


SLOPPY: list[Any] = [
    {"properties": {"a": {"type": "any"}}},
    {"properties": {"a": {"$ref": "#/$defs/none"}}},
    {"properties": {"a": None}},
    {"properties": {"a": {"required": True}}},
    {"properties": {"a": {"type": "integer", "minimum": 5, "maximum": 3}}, "required": ["a"]},
    {"properties": {"a": {"enum": []}}, "required": ["a"]},
    {"properties": {"a": {}}, "type": "OBJECT", "required": None},
    {"type": "array"},
    {"$ref": "#/none"},
]
"""Schemas that plain calls take. Of each argument a value may be 5."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("calls", ["hermes", "glm"])
async def test_a_function_that_need_not_be_followed_refuses_nothing(
    grammars: Grammars, caplog: pytest.LogCaptureFixture, calls: str, required: bool
) -> None:
    """It is called with any values. Beside it the functions that are strict are followed."""
    strict = Function("strict", {"properties": {"a": {"type": "integer"}}, "required": ["a"]}, True)
    vocabulary = Vocabulary(SHIPPED_MODEL, 4096, [END])
    asked = TextRequest(shape=Shape(calls=CallShape(required=required), param="tools"))
    hermes = '<tool_call>\n{{"name": "{}", "arguments": {{"a": {}}}}}\n</tool_call>'
    glm = "<tool_call>{}\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"

    async def takes(functions: list[Function], name: str, value: str) -> bool:
        rules = CallRules(functions, calls, ThoughtRules("", {}), required=required)
        matcher = vocabulary.matcher((await grammars.grammar_of(asked, rules)).text)
        text = (hermes if calls == "hermes" else glm).format(name, value)
        tokens = vocabulary._tokenizer.tokenize_str(text)
        return bool(matcher.consume_tokens(tokens) and matcher.is_accepting())

    caplog.set_level("INFO", module.__name__)
    for parameters in SLOPPY:
        sloppy = Function("sloppy", parameters)
        if calls == "hermes" or "properties" in parameters:
            for functions in ([sloppy], [strict, sloppy], [sloppy, strict]):
                assert await takes(functions, "sloppy", "5"), parameters
        assert await takes([sloppy, strict], "strict", "5")
        assert not await takes([sloppy, strict], "strict", '"x"')
    said = "functions whose schemas are not followed, as they cannot be: 1"
    assert {each.getMessage() for each in caplog.records} == {said}
    caplog.clear()
    assert await takes([strict], "strict", "5")
    assert not caplog.records


@pytest.mark.timeout(60)
async def test_a_function_that_takes_too_long_is_called_with_any_values(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grammars.grammar_of(request(regex="a"))
    monkeypatch.setattr(module, "COMPILE_SECONDS", 0.03)
    asked = TextRequest(shape=Shape(calls=CallShape(required=True), param="tools"))
    many = {f"q{i}": {"properties": {f"p{j}": {"type": "integer"} for j in range(30)}} for i in range(60)}
    slow = Function("slow", {"properties": {"a": {"type": "integer"}, **many}, "required": ["a"]})
    good = Function("good", {"properties": {"b": {"enum": ["only this"]}}})
    vocabulary = Vocabulary(SHIPPED_MODEL, 4096, [END])

    async def takes(functions: list[Function], text: str, resumed: bool = False) -> bool:
        if resumed:
            asked.resumed.append(TextSoFar(index=0, token_ids=[5]))
        rules = CallRules(functions, "json", ThoughtRules("", {}), required=True)
        matcher = vocabulary.matcher((await grammars.grammar_of(asked, rules)).text)
        return bool(matcher.consume_tokens(vocabulary._tokenizer.tokenize_str(text)))

    any_text = '[{"name": "slow", "arguments": {"a": "?"}}'
    assert await takes([slow], any_text)
    assert await takes([slow, good], any_text)
    assert not await takes([slow, good], any_text.replace('"a"', '"b"'))
    assert not await takes([good, slow], any_text.replace("slow", "good").replace('"a"', '"b"'))
    with pytest.raises(InvalidRequestError, match=r"function 'slow': it takes more than 0.03 s"):
        await takes([replace(slow, strict=True), good], any_text)
    grammars._own = MemoryVerdicts()
    grammars._kept = (grammars._own,)
    assert await takes([slow], any_text, resumed=True), "as when the answer began"


async def test_of_a_function_with_very_many_arguments_not_even_their_names_are_followed(
    grammars: Grammars,
) -> None:
    asked = TextRequest(shape=Shape(calls=CallShape(required=True), param="tools"))
    function = Function("f", {"properties": {f"q{i}": {} for i in range(800)}})
    rules = CallRules([function], "json", ThoughtRules("", {}), required=True)
    vocabulary = Vocabulary(SHIPPED_MODEL, 4096, [END])
    matcher = vocabulary.matcher((await grammars.grammar_of(asked, rules)).text)
    text = '[{"name": "f", "arguments": {"q7": 1, "other": [2]}}]'
    assert matcher.consume_tokens(vocabulary._tokenizer.tokenize_str(text))
    with pytest.raises(InvalidRequestError, match=r"Too many items|Current row has"):
        await grammars.grammar_of(asked, replace(rules, functions=[replace(function, strict=True)]))


@pytest.mark.timeout(60)
async def test_a_function_that_cannot_be_spelled_is_left_out_beside_others(grammars: Grammars) -> None:
    asked = TextRequest(shape=Shape(calls=CallShape(required=True), param="tools"))
    odd, good = Function("get-weather", None), Function("good", None)
    found = await grammars.grammar_of(
        asked, CallRules([odd, good], "pythonic", ThoughtRules("", {}), required=True)
    )
    assert "good" in found.text
    assert "weather" not in found.text
    for functions in (
        [odd],
        [replace(odd, strict=True), good],
        [odd, Function("b", {"not": {}}, strict=True)],
    ):
        rules = CallRules(functions, "pythonic", ThoughtRules("", {}), required=True)
        with pytest.raises(InvalidRequestError, match=r"function '(get-weather|b)': "):
            await grammars.grammar_of(asked, rules)


@pytest.mark.timeout(60)
async def test_an_equal_one_is_compiled_once(grammars: Grammars) -> None:
    first = await grammars.grammar_of(request(regex="a+"))
    process, grammars._child.process = grammars._child.process, None
    try:
        assert await grammars.grammar_of(request(regex="a+")) == first
    finally:
        grammars._child.process = process


@pytest.mark.timeout(60)
async def test_the_process_begins_late_has_no_secrets_and_is_replaced(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert grammars._child.process is None, "who asks for no grammar pays for no process"
    await grammars.grammar_of(request(regex="a"))
    assert grammars._child.process is not None
    started = psutil.Process(grammars._child.process.pid)
    assert "HF_TOKEN" not in started.environ()
    assert started.nice() == NICENESS
    os.kill(grammars._child.process.pid, signal.SIGKILL)
    assert (await grammars.grammar_of(request(regex="b"))).text


@pytest.mark.timeout(60)
def test_one_that_has_been_dead_for_a_while_is_replaced_in_the_loop_of_the_services() -> None:
    async def ask() -> None:
        grammars = Grammars(SHIPPED_MODEL, 4096, [END])
        await grammars.grammar_of(request(regex="a"))
        process = grammars._child.process
        assert process is not None
        assert process.stdin is not None
        process.kill()
        while not process.stdin.is_closing():
            await asyncio.sleep(0.001)
        assert (await grammars.grammar_of(request(regex="b"))).text
        await grammars.close()

    uvloop.run(ask())


@pytest.mark.timeout(60)
async def test_a_child_that_somebody_kills_is_replaced(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPILE_SECONDS", 60.0)
    await grammars.grammar_of(request(regex="a"))
    process = grammars._child.process
    assert process is not None
    killed = set()

    async def kill_each() -> None:
        while True:
            for child in psutil.Process(process.pid).children():
                if child.pid not in killed:
                    killed.add(child.pid)
                    child.kill()
            await asyncio.sleep(0)

    killer = asyncio.ensure_future(kill_each())
    with pytest.raises(InvalidRequestError, match="cannot be compiled"):
        await grammars.grammar_of(request(grammar=SLOWER_AND_SLOWER))
    killer.cancel()
    assert len(killed) == 2, "one more try"
    assert grammars._child.process is process
    assert (await grammars.grammar_of(request(regex="b"))).text


class Tokenizer(Grammars):
    """Counts its trials. `trial`: what each of them finds; None: they are real ones."""

    def __init__(self, shared: Verdicts, trial: Verdict | None = None, **basis: Any) -> None:
        super().__init__(
            **{"directory": SHIPPED_MODEL, "vocab_size": 4096, "end_tokens": [END]} | basis, shared=shared
        )
        self.trial, self.trials = trial, 0

    async def _tried(self, question: dict[str, Any]) -> Verdict:
        self.trials += 1
        return self.trial or await super()._tried(question)


async def text_of(grammars: Grammars, asked: TextRequest) -> str:
    """The grammar's text, or why there is none."""
    try:
        return (await grammars.grammar_of(asked)).text
    except InvalidRequestError as refused:
        return str(refused)


@pytest.fixture
def sharing(
    line: Line, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Tokenizer, Tokenizer]]:
    """Two tokenizers that share verdicts in Redis; the second may have another secret."""
    monkeypatch.setattr(shared_verdicts, "WAIT_SECONDS", 60.0)

    def two(second: bytes = b"secret") -> tuple[Tokenizer, Tokenizer]:
        seals = (Seal(b"secret"), Seal(second))
        one, other = (Tokenizer(RedisVerdicts(line, prefix, seal)) for seal in seals)
        return one, other

    return two


@pytest.mark.timeout(120)
async def test_what_one_tokenizer_has_tried_no_other_tries(
    sharing: Callable[..., tuple[Tokenizer, Tokenizer]],
    line: Line,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A good one, a malformed one, and one that takes too long."""
    first, second = sharing()
    for shape in ({"regex": "a+"}, {"regex": "a("}, HOSTILE[0]):
        if shape is HOSTILE[0]:
            monkeypatch.setattr(module, "COMPILE_SECONDS", 0.02)
        found = await text_of(first, request(**shape))
        assert await text_of(second, request(**shape)) == found
        await line.execute(("DEL", *(f"{prefix}grammars:{place}" for place in range(shared_verdicts.PLACES))))
        for each in (first, second):
            assert await text_of(each, request(**shape)) == found, "it keeps what it has found"
    assert "0.02 s" in found
    assert (first.trials, second.trials) == (3, 0)
    assert second._child.process is None, "it has not even started the process"
    await first.close()


@pytest.mark.timeout(60)
async def test_a_forged_verdict_is_passed_over(
    sharing: Callable[..., tuple[Tokenizer, Tokenizer]],
) -> None:
    forger, other = sharing(b"not the secret")
    forger.trial = Verdict(reason="forged")
    assert "forged" in await text_of(forger, request(regex="a+"))
    assert "a+" in await text_of(other, request(regex="a+"))
    assert other.trials == 1
    await other.close()


@pytest.mark.timeout(60)
async def test_a_redis_that_refuses_costs_no_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user of another service, who has no rights to verdicts."""
    monkeypatch.setattr(shared_verdicts, "WAIT_SECONDS", 60.0)
    users = Credentials()
    with RedisServer(users=users.acl_file("quire:")) as server:
        line = Line(users.url("worker", server.address))
        one = Tokenizer(RedisVerdicts(line, "quire:", Seal()))
        assert "a+" in await text_of(one, request(regex="a+"))
        assert "NOPERM" in caplog.text
        line.close()
    assert "unclosed" in await text_of(one, request(regex="a(")), "and when it is gone"
    assert one.trials == 2
    await one.close()


GOOD = Verdict(text="good")


async def test_a_verdict_holds_for_all_that_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = MemoryVerdicts()
    await text_of(Tokenizer(shared, GOOD, fingerprint="f"), request(regex="a"))
    like = Tokenizer(shared, GOOD, fingerprint="f")
    for asked, before in (
        (request(regex="a"), None),
        (request(regex="b"), None),
        (request(grammar="a"), None),
        (request(grammar="a", lenient=True), None),
        (TextRequest(thinking_budget=9), ThoughtRules("<think>", {}, 9)),
    ):
        await like.grammar_of(asked, None, before)
    assert like.trials == 4, "all but the first"
    for other in ({"fingerprint": "g"}, {"vocab_size": 4097}, {"end_tokens": [END, 5]}):
        unlike = Tokenizer(shared, GOOD, **{"fingerprint": "f"} | other)
        await text_of(unlike, request(regex="a"))
        assert unlike.trials == 1, other
    monkeypatch.setattr(module, "trial_fingerprint", lambda: "of other code")
    newer = Tokenizer(shared, GOOD, fingerprint="f")
    await text_of(newer, request(regex="a"))
    assert newer.trials == 1


async def test_an_answer_that_has_begun_is_not_refused_for_what_a_new_one_may_take() -> None:
    shared = MemoryVerdicts()
    slow = Verdict(reason="slow", granted=module.COMPILE_SECONDS)
    assert "slow" in await text_of(Tokenizer(shared, slow), request(regex="a"))
    resumed = request(regex="a")
    resumed.resumed.append(TextSoFar(index=0, token_ids=[5]))
    other = Tokenizer(shared, GOOD)
    assert "slow" in await text_of(other, request(regex="a"))
    assert other.trials == 0
    assert await text_of(other, resumed) == "good"
    assert await text_of(other, request(regex="a")) == "good", "who was granted more has found out"
    assert other.trials == 1


async def test_what_went_wrong_in_one_process_is_not_told_to_others() -> None:
    shared = MemoryVerdicts()
    killed = Tokenizer(shared, Verdict(reason="killed", granted=0.25, local=True))
    for _ in range(2):
        assert "killed" in await text_of(killed, request(regex="a"))
    assert killed.trials == 1, "it is kept for a while here"
    other = Tokenizer(shared, GOOD)
    assert await text_of(other, request(regex="a")) == "good"


@pytest.mark.timeout(60)
async def test_whose_fault_a_failed_trial_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that nobody else sends is the grammar's own, SIGKILL may be of a system that lacks memory."""
    tokenizer = Tokenizer(MemoryVerdicts())
    question = {"kind": "regex", "text": "a", "lenient": False, "seconds": 0.25}
    for ended, granted, local in (
        ({"ended": -signal.SIGKILL}, 0.25, True),
        ({"ended": -signal.SIGSEGV}, 0.25, False),
        ({"ended": -signal.SIGPROF}, 0.25, False),
        ({"error": "it takes too much memory", "scarce": True, "ended": 0}, 0.25, False),
        ({"error": "malformed", "ended": 0}, 0.0, False),
        ({"text": "start: /a/", "ended": 0}, 0.0, False),
    ):

        async def answer(*_: object, ended: dict[str, Any] = ended) -> dict[str, Any]:
            return ended

        monkeypatch.setattr(tokenizer, "_ask", answer)
        found = await tokenizer._tried(question)
        assert (found.granted, found.local) == (granted, local), ended
    await tokenizer.close()
    unfit = await Tokenizer(MemoryVerdicts(), end_tokens=[])._tried(question)
    assert (unfit.reason, unfit.local) == ("the model has no end token", True)


async def test_what_does_not_go_with_a_grammar_is_refused(grammars: Grammars) -> None:
    for name, field in (
        ("use_beam_search", {"beams": BeamSearch(beam_width=2)}),
        ("rolling_context", {"rolling_context": True}),
        ("ignore_eos", {"ignore_eos": True}),
    ):
        asked = TextRequest(shape=Shape(regex="a"), **field)
        with pytest.raises(InvalidRequestError) as refused:
            await grammars.grammar_of(asked)
        assert refused.value.param == name


@pytest.mark.timeout(60)
async def test_a_model_without_an_end_takes_none() -> None:
    grammars = Grammars(SHIPPED_MODEL, 4096, [])
    with pytest.raises(InvalidRequestError, match="no end token"):
        await grammars.grammar_of(request(regex="a"))
    await grammars.close()


@pytest.mark.timeout(60)
async def test_a_large_vocabulary_has_more_time_than_a_grammar(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read at a low priority. A process that is ended in the middle of that would never be ready."""
    monkeypatch.setattr(module, "WALL_SECONDS", 0.0)
    assert await grammars._start() == ""


async def test_a_schema_beside_calls_may_be_without_white_space(grammars: Grammars) -> None:
    schema = '{"type": "array", "items": {"type": "integer"}}'
    asked = request(json_schema=schema, or_calls=CallShape(), compact=True)
    vocabulary = Vocabulary(SHIPPED_MODEL, 4096, [END])
    for compact in (True, False):
        rules = CallRules(
            [Function("f", {})], "json", ThoughtRules("", {}), text_schema=schema, text_compact=compact
        )
        matcher = vocabulary.matcher((await grammars.grammar_of(asked, rules)).text)
        tokens = vocabulary._tokenizer.tokenize_str("[1, 2]")
        assert (matcher.try_consume_tokens(tokens) == len(tokens)) is not compact


@pytest.mark.timeout(60)
async def test_a_callers_leaving_does_not_mix_up_answers(grammars: Grammars) -> None:
    await grammars.grammar_of(request(regex="a"))
    process, trial = grammars._child.process, grammars._trial
    first = asyncio.ensure_future(grammars.grammar_of(request(**HOSTILE[0])))
    while grammars._trial is trial:
        await asyncio.sleep(0)
    first.cancel()
    began = time.monotonic()
    assert "start: /xyz/" in (await grammars.grammar_of(request(regex="xyz"))).text
    assert time.monotonic() - began < module.WALL_SECONDS
    assert grammars._child.process is process, "the next one does not wait for another process to start"


@pytest.mark.timeout(60)
async def test_who_leaves_before_its_turn_is_not_tried(grammars: Grammars) -> None:
    begun = asyncio.ensure_future(grammars.grammar_of(request(**HOSTILE[0])))
    while grammars._trial is None:
        await asyncio.sleep(0)
    trial = grammars._trial
    others = [asyncio.ensure_future(grammars.grammar_of(request(regex=f"a{n}"))) for n in range(8)]
    await asyncio.sleep(0)
    for waiting in (begun, *others):
        waiting.cancel()
    await asyncio.gather(begun, *others, return_exceptions=True)
    assert grammars._trial is trial


def test_the_field_that_asks_for_a_grammar() -> None:
    assert param_of(request(regex="a")) == "guided"
    assert param_of(TextRequest(shape=Shape(regex="a"))) == "structured_outputs"
    assert param_of(TextRequest(thinking_budget=9)) == "thinking_token_budget"
