"""What the page at /inside makes of what it is told. It needs Node.js, and Chromium for the whole page."""

from functools import partial
from random import Random

import pytest

from gateway.upstream.picture import Picture, change_of
from proto.arrays import pack
from proto.inside_pb2 import Look
from tests.support.javascript import evaluated, needs_node


@pytest.fixture
def run(tmp_path):
    """The value of an expression in JavaScript, to which the exports of a script of the page are `page`."""
    return partial(evaluated, tmp_path)


def looks(random, count):
    """What two schedulers might tell of their workers."""
    tables = {}
    for _ in range(count):
        scheduler = random.choice(["s1", "s2"])
        look = Look(scheduler=scheduler)
        look.totals.prompt_tokens, look.totals.cached_tokens = 100, random.randrange(100)
        worker = look.workers.add(number=random.randrange(1, 3))
        blocks = random.sample(range(40), random.randrange(8))
        worker.blocks, worker.states = pack(blocks), pack([random.randrange(8) for _ in blocks])
        worker.evicted = pack(random.sample(range(40), random.randrange(3)))
        known = tables.setdefault((scheduler, worker.number), {})
        if not known:
            worker.limits.blocks, worker.limits.block_size = 40, 16
        for number in random.sample(range(6), random.randrange(3)):
            before = known.get(number, [])
            kept, added = random.randrange(len(before) + 1), random.sample(range(40), random.randrange(4))
            told = worker.sequences.add(number=number, state=random.choice(["decode", "waiting"]), computed=7)
            if number not in known:
                told.request_id, told.tenant = f"r{number}", random.choice(["a", "b"])
            told.kept_blocks, told.added_blocks = kept, pack(added)
            known[number] = before[:kept] + added
        if known and random.random() < 0.3:
            number = random.choice(list(known))
            if all(told.number != number for told in worker.sequences):
                del known[number]
                worker.gone.append(number)
        worker.steps.add(number=random.randrange(99), decodes=2, sampled=3, copied_to=pack([5]))
        yield look


WHOLE = """(() => {
  const picture = page.fresh();
  for (const change of given) page.apply(picture, change, 0);
  return [...picture.workers.values()].map(worker => [
    worker.scheduler, worker.number, [...worker.states].sort((a, b) => a[0] - b[0]),
    [...worker.sequences.values()].map(({number, state, tenant, blocks}) => [number, state, tenant, blocks]),
    worker.steps.length,
  ]).sort();
})()"""


@needs_node
def test_the_page_puts_changes_together_as_the_gateway_does(run):
    picture, changes = Picture(), []
    for look in looks(Random(3), 60):
        change = change_of(look, "m")
        picture.apply(change)
        changes.append(change)
    expected = [
        [
            scheduler,
            number,
            [list(item) for item in sorted(worker.states.items())],
            [
                [one["number"], one["state"], one["tenant"], one["blocks"]]
                for one in worker.sequences.values()
            ],
            len(worker.steps),
        ]
        for (scheduler, number), worker in picture.workers.items()
    ]
    assert len(expected) == 4
    assert run("picture.js", WHOLE, changes) == sorted(expected)
    assert run("picture.js", WHOLE, picture.whole()) == sorted(expected)
    assert run("picture.js", WHOLE, [*changes, {"scheduler": "s1", "away": True}]) == sorted(
        one for one in expected if one[0] == "s2"
    )


@needs_node
def test_a_map_has_room_for_every_block(run):
    sizes = [(1, 300), (128, 860), (8192, 860), (8192, 340), (100_000, 860), (7, 20)]
    found = run("pool.js", "given.map(([blocks, width]) => page.layout(blocks, width))", sizes)
    for (blocks, width), layout in zip(sizes, found, strict=True):
        assert layout["side"] * layout["columns"] <= max(width, layout["side"])
        assert layout["columns"] * (layout["height"] // layout["side"]) >= blocks
    assert found[1]["side"] > found[2]["side"] >= 3
    kinds = run("pool.js", "given.map(page.kindOf)", [None, 0, 1, 2, 3, 4, 5, 7, 12])
    assert kinds == [
        "free",
        "free",
        "cached",
        "used",
        "used",
        "shared",
        "shared",
        "shared-more",
        "shared-most",
    ]


@needs_node
def test_a_step_in_words(run):
    step = {"number": 7, "decodes": 1, "chunks": 2, "prompt_tokens": 40, "budget": 64, "duration_us": 1250}
    (text, more) = run(
        "steps.js",
        "given.map(page.told)",
        [step, {"number": 8, "drafts": 3, "drafts_held": 1, "copied_to": [4]}],
    )
    assert text == "Step 7: 1 decode, 2 chunks of prompts with 40 tokens; budget 64; 1.3 ms"
    assert "3 drafts of which 1 held, 1 block copied" in more


READER = """
await until(() => document.querySelector("#requests button") && document.querySelector(".map canvas"));
document.querySelector("#requests button").click();
await until(() => document.querySelector("#detail .blocks button"));
const request = $("detail").innerText;
document.querySelector("#detail .blocks button").click();
await until(() => document.querySelector("#detail blockquote"));
const canvas = document.querySelector(".map canvas");
canvas.focus();
canvas.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
const moved = $("detail").innerText;
$("show").click();
const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
const seen = {
  request, moved, text: $("requests").innerText, memory: $("maps").innerText, step: $("step").textContent,
  processes: $("processes").innerText, demo: $("demo").innerText, live: $("live").textContent,
  colours: new Set(new Uint32Array(pixels.buffer)).size,
  wide: document.documentElement.scrollWidth - innerWidth,
};
"""
WRONG_KEY = """
await until(() => $("live").textContent === "Live");
$("key").value = "schlüssel ✓";
$("key").dispatchEvent(new Event("change"));
await until(() => !$("problem").hidden);
await until(() => $("live").textContent !== "Live");
const seen = {live: $("live").textContent, problem: $("problem").textContent, asked: !$("locked").hidden};
"""
BLOCKED = """
let blocked = false;
try { sessionStorage; } catch { blocked = true; }
await until(() => document.querySelector("#requests button"));
const seen = {blocked, live: $("live").textContent, text: $("requests").innerText};
"""


def told():
    """A request in three blocks, one of which another has, too."""
    look = Look(scheduler="scheduler-1")
    worker = look.workers.add(number=1, blocks=pack([4, 5, 6, 9]), states=pack([5, 3, 2, 1]))
    worker.limits.blocks, worker.limits.block_size = 64, 4
    tokens = pack([ord(letter) for letter in "<i>foxes</i>"])
    worker.sequences.add(
        number=1,
        request_id="0123456789abcdef",
        tenant="<b>north</b>",
        state="decode",
        prompt_tokens=9,
        limit=30,
        computed=11,
        tokens=12,
        added_blocks=pack([4, 5, 6]),
        added_tokens=tokens,
    )
    worker.sequences.add(number=2, request_id="other", state="preempted", tokens=3, limit=9)
    worker.steps.add(number=41, decodes=2, sampled=2, budget=16, duration_us=900)
    return look


@pytest.mark.parametrize("window", ["1300,900", "390,844"])
async def test_a_browser_shows_blocks_requests_and_steps(browse, scheduler, window):
    """A script in the page, which keeps the page's policy, chooses things and tells what it sees."""
    scheduler.looks.put_nowait(told())
    shown = await browse("/inside", READER, window)
    assert "01234567" in shown["text"]
    assert "preempted" in shown["text"]
    assert "<b>north</b>" in shown["request"]
    assert "3 blocks" in shown["request"]
    assert "Block\n5" in shown["moved"]
    assert "3 of 64 blocks in tables, 1 of them shared · 1 cached · 60 free" in shown["memory"]
    assert shown["step"] == "Step 41: 2 decodes; budget 16; 0.9 ms"
    assert "tokenizer" in shown["processes"]
    assert "Copy-on-write" in shown["demo"]
    assert shown["live"] == "Live"
    assert shown["colours"] >= 4
    assert shown["wide"] <= 0, "the page is wider than its window"


async def test_a_browser_asks_again_for_a_key_that_no_header_can_have(browse):
    shown = await browse("/inside", WRONG_KEY)
    assert shown == {
        "live": "Not allowed",
        "problem": "This is no API key: it has characters outside ASCII.",
        "asked": True,
    }


async def test_a_browser_that_keeps_nothing_shows_the_page(browse, blocked, scheduler):
    scheduler.looks.put_nowait(told())
    shown = await browse("/inside", BLOCKED)
    assert shown["blocked"]
    assert shown["live"] == "Live"
    assert "01234567" in shown["text"]


@needs_node
def test_a_request_leads_to_its_trace(run):
    fields = {"request_id": "r", "index": 0, "state": "decode", "tenant": "", "user": "", "dropped": 0}
    fields |= dict.fromkeys(("tokens", "prompt_tokens", "cached_tokens", "limit", "computed"), 8)
    fields |= {"blocks": [], "trace_id": "0af7651916cd43dd8448eb211c80319c"}
    shown = """given.map(([link, more]) => JSON.stringify(page.sequence(
        {key: "1", states: new Map()}, more, link)))"""
    jaeger = "http://127.0.0.1:16686/trace/{id}?uiEmbed=v0"
    with_link, without, not_traced = run(
        "panels.js", shown, [[jaeger, fields], ["", fields], [jaeger, fields | {"trace_id": ""}]]
    )
    assert '"href":"http://127.0.0.1:16686/trace/0af7651916cd43dd8448eb211c80319c?uiEmbed=v0"' in with_link
    assert "href" not in without + not_traced
