"""Templates and conversations that would never end or fill the memory, in the process that renders them."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import psutil
import pytest
import uvloop

from tokenizer_svc.errors import InvalidRequestError, ModelDirectoryError
from tokenizer_svc.templates import renderer as module
from tokenizer_svc.templates.renderer import Renderer
from tokenizer_svc.templates.template import Rendering
from tokenizer_svc.templates.tools_as_text import Spelling

HI = [{"role": "user", "content": "hi"}]
JSON = Spelling("[", '{"name": "$name", "arguments": $arguments}', ", ", "]", foreign=True)
Started = Callable[[str], AbstractAsyncContextManager[Renderer]]


@asynccontextmanager
async def started(source: str) -> AsyncIterator[Renderer]:
    renderer = Renderer(source, {"bos_token": "<s>"}, seconds=0.2)
    await renderer.start()
    try:
        yield renderer
    finally:
        await renderer.close()


BOMBS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "output": "{% for a in range(99999) %}{% for b in range(99999) %}{{ bos_token }}{% endfor %}{% endfor %}",
    "product": "{{ messages[0].content * 10**10 }}",
    "constant": "{{ 'x' * 10**10 }}",
    "power": "{% set n = messages | length + 9 %}{{ n ** (n ** n) }}",
    "centre": "{{ messages[0].content.center(10**11) }}",
    "format": "{{ '%99999999999d' % (messages | length) }}",
    "doubled": "{% set ns = namespace(x='a') %}{% for a in range(64) %}{% set ns.x = ns.x ~ ns.x %}"
    "{% endfor %}",
    "list": "{% set ns = namespace(x=[1]) %}{% for a in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "long": "{% for a in range(9999) %}{{ 'x' * 999 }}{% endfor %}",
    "lipsum": "{{ lipsum(n=10**9) }}",
}


STUBBORN = "{{ ([messages] * 3000000) | sum(start=[]) | length }}"
"""One call of a function in C, which takes hours and looks at no signal."""


async def test_what_is_nested_too_deeply_is_refused_by_the_same_process() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    async with started("{{ messages[0].content }}") as renderer:
        process = renderer._quick.child.process
        with pytest.raises(InvalidRequestError, match="nested too deeply"):
            await renderer.render(HI, deep)
        assert await renderer.render(HI, {}) == "hi"
        assert renderer._quick.child.process is process


async def test_code_in_c_that_does_not_stop_ends_its_process(caplog: pytest.LogCaptureFixture) -> None:
    source = "{% if messages[0].content == 'hi' %}" + STUBBORN + "{% else %}well{% endif %}"
    async with started(source) as renderer:
        first = renderer._quick.child.process
        renderer._quick._wall_seconds = renderer._slow._wall_seconds = 3600  # so nothing else ends them
        async with asyncio.timeout(60):
            with pytest.raises(InvalidRequestError, match="does not get through"):
                await renderer.render(HI, {})
            assert await renderer.render([{"role": "user", "content": "?"}], {}) == "well"
        assert first is not None
        assert first.returncode == -signal.SIGPROF
    assert not caplog.records


@pytest.mark.timeout(60)
async def test_every_bomb_is_one_line_and_no_process_is_large() -> None:
    bombs = {name: "{% if messages[0].content == '" + name + "' %}" + bomb for name, bomb in BOMBS.items()}
    async with started("{% endif %}".join([*bombs.values(), "{{ messages[0].content }}"])) as renderer:
        for name in bombs:
            try:
                text = await renderer.render([{"role": "user", "content": name}], {})
            except InvalidRequestError as error:
                refused = error
            else:
                pytest.fail(f"{name}: {len(text)} characters")
            assert refused.param == "messages", name
            assert "chat template" in str(refused)
            assert "\n" not in str(refused)
            assert len(str(refused)) < 600
        assert await renderer.render(HI, {}) == "hi"
        process = psutil.Process(renderer._quick.child.process.pid)
        assert process.memory_info().vms <= 2**30


UNUSABLE = {
    "syntax": "{% if %}",
    "constant": "{{ 9 ** (9 ** 9) }}",
    "nested": "{% if a %}" * 20000,
    "parentheses": "{{ " + "(" * 50000,
}


@pytest.mark.parametrize("name", UNUSABLE)
async def test_a_template_that_does_not_compile_is_one_line(name: str) -> None:
    renderer = Renderer(UNUSABLE[name], {}, seconds=0.2)
    with pytest.raises(ModelDirectoryError) as refused:
        await renderer.start()
    assert "chat template" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert renderer._quick.child.process is None


async def test_its_process_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_REDIS_URL", "redis://:secret@127.0.0.1")
    monkeypatch.setenv("HF_TOKEN", "secret")
    async with started("x") as renderer:
        environment = psutil.Process(renderer._quick.child.process.pid).environ()
    assert not {"QUIRE_REDIS_URL", "HF_TOKEN"} & environment.keys()


async def test_one_that_is_killed_is_replaced_and_the_question_asked_again() -> None:
    async with started("{{ bos_token }}{{ messages[0].content }}") as renderer:
        os.kill(renderer._quick.child.process.pid, signal.SIGKILL)
        assert await renderer.render(HI, {}) == "<s>hi"


def test_one_that_has_been_dead_for_a_while_is_replaced_in_the_loop_of_the_services() -> None:
    async def ask() -> str:
        async with started("{{ messages[0].content }}") as renderer:
            process = renderer._quick.child.process
            os.kill(process.pid, signal.SIGKILL)
            while not process.stdin.is_closing():
                await asyncio.sleep(0.001)
            return await renderer.render(HI, {})

    assert uvloop.run(ask()) == "hi"


async def test_one_that_hangs_is_ended_and_the_second_asked() -> None:
    async with started("{{ messages[0].content }}") as renderer:
        renderer._quick._wall_seconds = 0.1
        os.kill(renderer._quick.child.process.pid, signal.SIGSTOP)
        assert await renderer.render(HI, {}) == "hi"
        os.kill(renderer._slow.child.process.pid, signal.SIGSTOP)
        renderer._quick._wall_seconds, renderer._slow._wall_seconds = 0.0, 0.1
        with pytest.raises(InvalidRequestError, match="does not get through"):
            await renderer.render(HI, {})
        renderer._quick._wall_seconds = 30
        assert await renderer.render(HI, {}) == "hi"


SLOW = [{"role": "user", "content": "slow"}]
LOOPS = "{% if messages[0].content == 'slow' %}" + BOMBS["loops"] + "{% endif %}{{ messages[0].content }}"


async def test_a_second_process_is_there_once_something_is_slow() -> None:
    async with started(LOOPS) as renderer:
        assert await renderer.render(HI, {}) == "hi"
        assert renderer._slow.child.process is None
        with pytest.raises(InvalidRequestError, match="more than"):
            await renderer.render(SLOW, {})
        assert renderer._slow.child.process is not None
        processes = [psutil.Process(lane.child.process.pid) for lane in (renderer._quick, renderer._slow)]
    assert not any(process.is_running() for process in processes)


async def test_what_takes_longer_than_a_moment_is_rendered_all_the_same() -> None:
    busy = "{% for a in range(99999) %}{% for b in range(10) %}{% endfor %}{% endfor %}done"
    renderer = Renderer(busy, {}, seconds=20)
    renderer._quick._seconds = 0.001
    await renderer.start()
    assert await renderer.render(HI, {}) == "done"
    assert renderer._slow.child.process is not None
    await renderer.close()


@pytest.mark.timeout(60)
async def test_slow_conversations_of_one_tenant_make_those_of_others_wait_for_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, float]] = []
    exchange = module._Lane._exchanged

    async def noted(lane: Any, question: Any) -> dict[str, Any]:
        asked.append((question["messages"][0]["content"], question["seconds"]))
        return await exchange(lane, question)

    monkeypatch.setattr(module._Lane, "_exchanged", noted)
    async with started(LOOPS) as renderer:
        hostile = [asyncio.ensure_future(renderer.render(SLOW, {}, tenant="hostile")) for _ in range(30)]
        await asyncio.sleep(0)
        normal = [asyncio.ensure_future(renderer.render(HI, {}, tenant=f"tenant-{n % 2}")) for n in range(8)]
        assert await asyncio.gather(*normal) == ["hi"] * 8
        quick = [content for content, seconds in asked if seconds == module.QUICK_SECONDS]
        # Before each two of them there is one slow conversation, which has a tenth of a second.
        assert quick[:12] == ["slow", "hi", "hi"] * 4
        assert not all(task.done() for task in hostile)
        for task in hostile:
            task.cancel()
        await asyncio.wait(hostile)
        assert len([content for content, _ in asked if content == "slow"]) < 20, "who leaves is not rendered"


async def test_a_caller_that_leaves_does_not_get_its_answer_to_another() -> None:
    async with started("{{ messages[0].content }}") as renderer:
        asks = [
            asyncio.ensure_future(renderer.render([{"role": "user", "content": str(number)}], {}))
            for number in range(20)
        ]
        await asyncio.sleep(0)
        for ask in asks[::2]:
            ask.cancel()
        answers: list[Any] = await asyncio.gather(*asks, return_exceptions=True)
    assert answers[1::2] == [str(number) for number in range(1, 20, 2)]
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[::2])


async def test_callers_that_leave_one_after_the_other_leave_one_conversation_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []
    exchange = module._Lane._exchanged

    async def noted(lane: Any, question: Any) -> dict[str, Any]:
        begun.append(question["messages"][0]["content"])
        return await exchange(lane, question)

    monkeypatch.setattr(module._Lane, "_exchanged", noted)
    async with started("{{ messages[0].content }}") as renderer:
        process = psutil.Process(renderer._quick.child.process.pid)
        process.suspend()
        for number in range(8):
            message = [{"role": "user", "content": str(number)}]
            ask = asyncio.ensure_future(renderer.render(message, {}, tenant="leaves"))
            await asyncio.sleep(0.01)
            ask.cancel()
            await asyncio.wait([ask])
        process.resume()
        assert await renderer.render(HI, {}, tenant="stays") == "hi"
    assert begun == ["0", "hi"]


async def test_its_process_ends_with_it() -> None:
    async with started("x") as renderer:
        process = psutil.Process(renderer._quick.child.process.pid)
    deadline = time.monotonic() + 10
    while process.is_running() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert not process.is_running()


async def test_a_template_that_comes_with_a_conversation() -> None:
    """It is rendered like the model's own, and within the same bounds."""
    renderer = Renderer("{{ bos_token }}own", {"bos_token": "<s>"}, seconds=0.2, takes_templates=True)
    await renderer.start()
    try:
        for number in range(40):  # more than are kept
            other = Rendering(template=f"{{{{ bos_token }}}}{number}{{{{ messages[0].content }}}}")
            assert await renderer.render(HI, {}, rendering=other) == f"<s>{number}hi"
        assert await renderer.render(HI, {}) == "<s>own"
        assert await renderer.render(HI, {}, rendering=Rendering(documents=[1])) == "<s>own"
        for source, param in (
            ("{% if %}", "chat_template"),
            ("{{ ''.__class__.__mro__ }}", "messages"),
            ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "messages"),
        ):
            with pytest.raises(InvalidRequestError) as refused:
                await renderer.render(HI, {}, rendering=Rendering(template=source))
            assert refused.value.param == param
        assert await renderer.render(HI, {}) == "<s>own"
    finally:
        await renderer.close()


async def test_functions_are_told_as_text_if_it_is_to_tell_them() -> None:
    """In the model's template and in those of clients alike."""
    source, other = "{{ messages[0].content }}", Rendering(template="! {{ messages[0].content }}")
    tools = [{"type": "function", "function": {"name": "clock"}}]
    told = f'{JSON.instruction}{{"name": "clock"}}\n\nhi'
    for spelling, expected in ((JSON, told), (None, "hi")):
        renderer = Renderer(source, {}, takes_templates=True, spelling=spelling)
        try:
            assert await renderer.render(HI, {}, tools) == expected
            assert await renderer.render(HI, {}, tools, rendering=other) == f"! {expected}"
        finally:
            await renderer.close()


OTHER_TOOLS = "{% for t in tools %}{{ t.parameter_definitions.items() }}{% endfor %}{{ messages[0].content }}"
NO_TOOLS = "{{ raise_exception('no') if tools }}"


@pytest.mark.parametrize("tool_source", [None, OTHER_TOOLS])
async def test_functions_that_a_template_refuses_are_told_as_text(tool_source: str | None) -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}" + NO_TOOLS
    renderer = Renderer(source, {}, tool_source=tool_source, spelling=JSON)
    await renderer.start()
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    text = await renderer.render(HI, {}, [tool])
    await renderer.close()
    assert '{"name": "add", "parameters": {"type": "object"}}' in text
    assert text.endswith("hi")


async def test_conversations_with_functions_have_a_template_of_their_own() -> None:
    renderer = Renderer("plain", {}, tool_source="{{ tools[0].function.name }}")
    try:
        assert await renderer.render(HI, {}) == "plain"
        tools = [{"type": "function", "function": {"name": "clock"}}]
        assert await renderer.render(HI, {}, tools) == "clock"
    finally:
        await renderer.close()
    with pytest.raises(ModelDirectoryError, match="does not compile"):
        await Renderer("plain", {}, tool_source="{% for %}").start()


async def test_a_template_of_a_client_s_is_refused_unless_allowed() -> None:
    renderer = Renderer("own", {})
    with pytest.raises(InvalidRequestError, match="QUIRE_CLIENT_TEMPLATES") as refused:
        await renderer.render(HI, {}, rendering=Rendering(template="x"))
    assert refused.value.param == "chat_template"
