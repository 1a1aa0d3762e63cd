"""What the chat page's scripts make of answers. It needs Node.js, and Chromium for the whole page."""

import json
import random
from dataclasses import replace
from html import escape

import pytest

from proto.sampling_pb2 import NOT_FINISHED, STOP
from proto.tokenizer_pb2 import JSON_CALLS, AnswerFormat, PromptInfo, TextChunk, TextDelta
from tests.support.javascript import evaluated, needs_node
from tests.unit.gateway.conftest import leases_of

TAGS = {
    *(
        "p",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "blockquote",
        "ul",
        "ol",
        "li",
        "div",
        "span",
        "button",
        "pre",
        "code",
    ),
    *("table", "thead", "tbody", "tr", "th", "td", "strong", "em", "del", "a", "br"),
}


@pytest.fixture
def run(tmp_path):
    """Calls a function with each of some values; gives its results.

    `module`: one of the page's scripts. `function`: an expression in JavaScript, to which the exports of the
    script are `page`.
    """

    def run(module, function, values):
        return evaluated(tmp_path, module, f"given.map(value => ({function})(value))", values)

    return run


def html(tree):
    """A tree as HTML, with the attributes that change what it means."""
    if isinstance(tree, str):
        return escape(tree, quote=False)
    if tree["attributes"].get("class") == "code":
        bar, pre = tree["children"]
        return f"<pre {bar['children'][0]['children'][0]}>{html(pre['children'][0]['children'][0])}</pre>"
    kept = [f" {name}={value}" for name, value in tree["attributes"].items() if name in ("href", "start")]
    inner = "".join(map(html, tree["children"]))
    if tree["attributes"].get("class") == "wide":
        return inner
    return f"<{tree['tag']}{''.join(kept)}>{inner}</{tree['tag']}>".replace("></br>", ">")


MARKDOWN = {
    "# A *b* #": "<h3>A <em>b</em></h3>",
    "#no": "<p>#no</p>",
    "a\nb\n\nc": "<p>a<br>b</p><p>c</p>",
    "a **b** *c* ***d*** ~~e~~ __f__": "<p>a <strong>b</strong> <em>c</em> <em><strong>d</strong></em>"
    " <del>e</del> <strong>f</strong></p>",
    "snake_case_name 2 * 3 * 4 **open": "<p>snake_case_name 2 * 3 * 4 **open</p>",
    "**粗体。**后": "<p><strong>粗体。</strong>后</p>",
    "`a*b*` `` ` `` \\*c\\*": "<p><code>a*b*</code> <code>`</code> *c*</p>",
    "```py\n  x < *1*\n```\nb": "<pre py>  x &lt; *1*</pre><p>b</p>",
    "````\n```\n````": "<pre >```</pre>",
    "```\nstill comes": "<pre >still comes</pre>",
    "- a\n  - b\n- c": "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>",
    "1. a\n\n2. b\n   c\n\n   d": "<ol><li>a</li><li>b<br>c<p>d</p></li></ol>",
    "1. a\n```\nx\n```\n2. b": "<ol><li>a</li></ol><pre >x</pre><ol start=2><li>b</li></ol>",
    "- [x] a\n- [ ] b": "<ul><li>☑ a</li><li>☐ b</li></ul>",
    "> a\n> - b\n\nc": "<blockquote><p>a</p><ul><li>b</li></ul></blockquote><p>c</p>",
    "a\n\n---\nb": "<p>a</p><hr></hr><p>b</p>",
    "a|b\n-|:-:\n1|`x\\|y`<br>z": "<table><thead><tr><th>a</th><th>b</th></tr></thead>"
    "<tbody><tr><td>1</td><td><code>x|y</code><br>z</td></tr></tbody></table>",
    "a | b": "<p>a | b</p>",
    "[a *b*](http://c.d/e_(f)) http://g.h/i_j.": "<p><a href=http://c.d/e_(f)>a <em>b</em></a>"
    " <a href=http://g.h/i_j>http://g.h/i_j</a>.</p>",
    "**see http://a.b**": "<p><strong>see <a href=http://a.b/>http://a.b</a></strong></p>",
    "[http://a.b](http://c.d)": "<p><a href=http://c.d/>http://a.b</a></p>",
    "![cat](http://a.b/c.png)": "<p><a href=http://a.b/c.png>cat</a></p>",
    "[a](javascript:alert(1)) [b](/v1/models) [c](data:text/html,x)": "<p>[a](javascript:alert(1))"
    " [b](/v1/models) [c](data:text/html,x)</p>",
    "<img src=x onerror=alert(1)> &lt;": "<p>&lt;img src=x onerror=alert(1)&gt; &amp;lt;</p>",
    r"So \( a*b*c \) and \\(*x*) is \(\{ y \}\)": r"<p>So \( a*b*c \) and \(<em>x</em>) is \(\{ y \}\)</p>",
    r"\[ \begin{pmatrix} a & b \\[4pt] c & d \end{pmatrix} \{ x \} \]": r"<p>\[ \begin{pmatrix} a &amp; b"
    r" \\[4pt] c &amp; d \end{pmatrix} \{ x \} \]</p>",
    r"$$ \int f(x) = a*b*c_i \, dx $$": r"<p>$$ \int f(x) = a*b*c_i \, dx $$</p>",
    "The sum:\n\\[\na \\\\\n- b*c*d \\\\\n+ e\n\\]\n*there*": "<p>The sum:</p><p>\\[<br>a \\\\<br>"
    "- b*c*d \\\\<br>+ e<br>\\]</p><p><em>there</em></p>",
    "\\[1\\] A *b*\n\\[2\\] C": "<p>[1] A <em>b</em><br>[2] C</p>",
    "$$x$$ is **bold**\nand goes on": "<p>$$x$$ is <strong>bold</strong><br>and goes on</p>",
    "- $$\n  |x| \\\\\n  - y\n  $$": "<ul><li>$$<br>|x| \\\\<br>- y<br>$$</li></ul>",
    "\\[\na\n\n- b*c*d\n\n\\]\n\n*e*": "<p>\\[<br>a<br><br>- b*c*d<br><br>\\]</p><p><em>e</em></p>",
    "- $$\n  a_b\n\n  + c_d\n  $$\n- e": "<ul><li>$$<br>a_b<br><br>+ c_d<br>$$</li><li>e</li></ul>",
    "$$\n*a*\n\n\\[\n\n- b": "<p>$$<br><em>a</em></p><p>[</p><ul><li>b</li></ul>",
    "a \\(b \\\\\nc\\)\\\nd": "<p>a \\(b \\\\<br>c\\)<br>d</p>",
    "\\[*a*\n- b\n\n$$5 and *c*": "<p>[<em>a</em></p><ul><li>b</li></ul><p>$$5 and <em>c</em></p>",
}


@needs_node
def test_markdown_becomes_elements(run):
    trees = run("markdown.js", "page.parse", list(MARKDOWN))
    shown = ["".join(map(html, blocks)) for blocks in trees]
    assert dict(zip(MARKDOWN, shown, strict=True)) == MARKDOWN


def elements(trees, depth=0):
    for tree in trees:
        if isinstance(tree, dict):
            yield tree, depth
            yield from elements(tree["children"], depth + 1)


def text_of(trees):
    return "".join(tree if isinstance(tree, str) else text_of(tree["children"]) for tree in trees)


@needs_node
def test_whatever_a_model_says_is_text_and_harmless_elements(run):
    source = random.Random(7)
    pieces = [
        *(
            "*",
            "**",
            "_",
            "~~",
            "`",
            "```",
            "\n",
            "\n\n",
            "    ",
            "\t",
            "- ",
            "1. ",
            "> ",
            "# ",
            "|",
            "|-|-|\n",
        ),
        *("\\(", "\\)", "\\[", "\\]", "$$"),
        *("[", "](", ")", "![", "<", ">", "\\", '"', "&", "a", "Z9", "❄", "javascript:", "java\nscript:"),
        *("http://x", "https://x/?q=", "mailto:a@b", "data:", "<script>", "<img onerror=", "</p>", "<br>"),
    ]
    texts = ["".join(source.choices(pieces, k=source.randrange(1, 60))) for _ in range(3000)]
    for text, trees in zip(texts, run("markdown.js", "page.parse", texts), strict=True):
        for tree, _ in elements(trees):
            assert tree["tag"] in TAGS, text
            assert tree["attributes"].keys() <= {
                *("class", "start", "type", "data-action", "href", "title", "target", "rel")
            }, text
            if tree["tag"] == "a":
                assert tree["attributes"]["href"].startswith(("http://", "https://", "mailto:")), text
                assert tree["attributes"]["rel"] == "noopener noreferrer"
        if (
            "```" not in text and "|" not in text
        ):  # the names of languages and cells without a head are left out
            kept = text_of(trees) + "".join(tree["attributes"].get("href", "") for tree, _ in elements(trees))
            assert kept.count("❄") + kept.count("%E2%9D%84") >= text.count("❄"), text


@needs_node
def test_long_hostile_texts_take_neither_long_nor_deep_trees(run):
    many = 100_000
    texts = [
        mark * (many // len(mark)) for mark in ("*", "*a_b ", "[", "[a](", "](", "`", "> ", "- ", "<https://")
    ]
    texts += [
        "](" + " " * many,
        "# " + " " * many + "x",
        "https://" + "." * many,
        "|" * many + "\n" + "|-" * (many // 2) + "\n" + "|\n" * 1000,
        "a|b\n" * (many // 4),
        "[*" * (many // 2) + "*](http://a)" * 1000,
        "\n".join(" " * indent + "- x" for indent in range(0, 800, 2)),
        " ".join("`" * length for length in range(1, 400)),
        *(mark * (many // len(mark)) for mark in ("\\(", "\\[", "\\[\n", "\\(a\\[", "$$\n\\[\n", "$$ $")),
        "\\[\n$$\n" + "a\n" * (many // 2),
    ]
    for text, trees in zip(texts, run("markdown.js", "page.parse", texts), strict=True):
        assert max((depth for _, depth in elements(trees)), default=0) < 100, text[:20]


@needs_node
def test_what_is_sent_has_questions_with_their_answers(run):
    def request(*messages, **settings):
        usual = {
            "model": "m",
            "system": "",
            "tools": "",
            "temperature": "",
            "top_p": "",
            "max_tokens": "",
            "seed": "",
        }
        return {"settings": usual | settings, "messages": messages}

    def says(role, content, **rest):
        return {"role": role, "content": content, **rest}

    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    plain, failed, set_up, called = run(
        "chats.js",
        "page.request",
        [
            request(
                says("user", "a"), says("assistant", "b", facts="2 tokens", tool_calls=[]), says("user", "c")
            ),
            request(says("user", "a"), says("assistant", "", error="no"), says("user", "b")),
            request(says("user", "a"), system="s", temperature="0", seed="7", tools="[]"),
            request(
                says("user", "a"),
                says("assistant", "", tool_calls=[call], reasoning_content="why"),
                says("tool", "r", tool_call_id="c", name="f"),
            ),
        ],
    )
    assert plain["messages"] == [says("user", "a"), says("assistant", "b"), says("user", "c")]
    assert plain.keys() == {"model", "messages", "stream", "stream_options"}
    assert failed["messages"] == [says("user", "b")]
    assert set_up["messages"] == [says("system", "s"), says("user", "a")]
    assert (set_up["temperature"], set_up["seed"], set_up["tools"]) == (0, 7, [])
    assert called["messages"][1:] == [
        says("assistant", "", tool_calls=[call], reasoning_content="why"),
        says("tool", "r", tool_call_id="c"),
    ]


@needs_node
def test_images_are_sent_before_their_text(run):
    asked = {"settings": {"model": "m"}}
    urls = ["data:image/png;base64,a", "data:image/png;base64,b"]
    pair, alone = run(
        "chats.js",
        "chat => page.sent(chat, 'm')[0].content",
        [
            asked | {"messages": [{"role": "user", "content": "?", "images": urls}]},
            asked | {"messages": [{"role": "user", "content": "", "images": urls[:1]}]},
        ],
    )
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    assert pair == [*parts, {"type": "text", "text": "?"}]
    assert alone == parts[:1]


@needs_node
def test_a_chat_without_room_loses_its_oldest_images_first(run):
    messages = [
        {"role": "user", "content": "a", "images": ["x", "y"]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c", "images": ["z"]},
    ]
    first, second = run(
        "chats.js",
        "([chat, times]) => Array(times).fill().reduce(page.lighter, chat).messages",
        [[{"messages": messages}, times] for times in (1, 2)],
    )
    assert first == [{"role": "user", "content": "a", "lost": "2 images"}, *messages[1:]]
    assert second == [*first[:2], {"role": "user", "content": "c", "lost": "1 image"}]
    (shown,) = run("view.js", "chat => page.turn(0, {chat})", [{"messages": first}])
    assert "2 images not kept" in html(shown)


@needs_node
def test_how_far_an_image_is_reduced(run):
    sides = [(10, 20), (2048, 2048), (4096, 1024), (1, 100_000)]
    found = run("images.js", "page.size", [{"width": width, "height": height} for width, height in sides])
    assert [(one["width"], one["height"]) for one in found] == [
        (10, 20),
        (2048, 2048),
        (2048, 512),
        (1, 2048),
    ]


@needs_node
def test_comments_are_no_events(tmp_path):
    text = ':\n\n:\n\ndata: {"a": 1}\n\n:\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n'
    collected = "async found => { for await (const one of page.events(new Response(given))) found.push(one);"
    found = evaluated(tmp_path, "server.js", f"await ({collected} return found; }})([])", text)
    assert found == [{"a": 1}, {"a": 2}]


@needs_node
def test_a_key_that_no_header_can_have_is_refused(tmp_path):
    """`fetch` would throw, as if the server could not be reached."""
    asked = "async () => { page.setApiKey(given); const got = await page.ask('v1/models');"
    told = "return [got.status, (await got.json()).error.message]; }"
    found = evaluated(tmp_path, "server.js", f"await ({asked} {told})()", "schlüssel ✓")
    assert found == [401, "This is no API key: it has characters outside ASCII."]


@needs_node
def test_a_storage_that_is_blocked_is_a_memory(tmp_path):
    """Browsers throw when a page reads the name of one, or have null there."""
    forms = {"blocked": "get() { throw new Error('SecurityError'); }", "missing": "value: null"}
    defined = "".join(
        f"Object.defineProperty(globalThis, '{name}', {{{form}}});" for name, form in forms.items()
    )
    used = "store.setItem('b', '1'); store.setItem('a', '2'); store.removeItem('b');"
    seen = "[page.lasts(store), Object.keys(store), store.getItem('a'), store.getItem('b')]"
    each = f"name => {{ const store = page.opened(name); {used} return {seen}; }}"
    found = evaluated(tmp_path, "store.js", f"(() => {{ {defined} return given.map({each}); }})()", [*forms])
    assert found == [[False, ["a"], "2", None]] * 2


@needs_node
def test_the_call_of_a_custom_tool_has_an_input(run):
    piece = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    start = "page.reply({settings: {model: 'm'}})"
    (message,) = run(
        "chats.js", f"value => (one => (page.add(one, value), one))({start})", [{"tool_calls": [piece]}]
    )
    call = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    assert message["tool_calls"] == [call]
    chat = {"title": "t", "settings": {"model": "m"}, "messages": [{"role": "user", "content": "?"}, message]}
    (sent,) = run("chats.js", "chat => page.sent(chat, 'm')", [chat])
    assert sent[1]["tool_calls"] == [call]
    (shown,) = run("view.js", "chat => page.turn(1, {chat})", [chat])
    assert "<summary>Call of sql</summary><pre><code>select 1</code></pre>" in html(shown)
    (field,) = [tree["attributes"] for tree, _ in elements([shown]) if tree["tag"] == "input"]
    assert (field["data-call"], field["placeholder"]) == ("c", "Result of sql")
    (saved,) = run("chats.js", "page.asMarkdown", [chat])
    assert "## Call of sql\n\n```\nselect 1\n```\n" in saved


@needs_node
def test_an_answer_is_put_together_from_its_events(run):
    def calls(index, **function):
        return {"tool_calls": [{"index": index, "function": function, "id": f"call-{index}"}]}

    events = [
        {"role": "assistant", "content": ""},
        *(
            {"reasoning_content": "<b>"},
            {"reasoning_content": "why"},
            {"content": "It "},
            {"content": "*is*"},
        ),
        *(calls(0, name="f", arguments=""), calls(0, arguments='{"a":'), calls(0, arguments=" 1}")),
        calls(1, name="g", arguments="{}"),
    ]
    start = "page.reply({settings: {model: 'm'}})"
    (message,) = run(
        "chats.js", f"value => value.reduce((all, one) => (page.add(all, one), all), {start})", [events]
    )
    assert (message["reasoning_content"], message["content"]) == ("<b>why", "It *is*")
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    answered = {"role": "tool", "name": "f", "content": "2", "tool_call_id": "call-0"}
    question = {"role": "user", "content": "?"}
    shown, with_result, later = run(
        "view.js",
        "chat => chat.messages.map((_, place) => page.turn(place, {chat}))",
        [{"messages": [question, message, *more]} for more in ([], [answered], [answered, question])],
    )
    answer = html(shown[1])
    assert "<details><summary>Thoughts</summary><div><p>&lt;b&gt;why</p></div></details>" in answer
    assert "<p>It <em>is</em></p>" in answer
    assert '<details><summary>Call of f</summary><pre><code>{"a": 1}</code></pre></details>' in answer
    fields = [
        [tree["attributes"]["data-call"] for tree, _ in elements(trees) if tree["tag"] == "input"]
        for trees in (shown, with_result, later)
    ]
    assert fields == [["call-0", "call-1"], ["call-1"], []]
    (known,) = run("view.js", "chat => page.turn(1, {chat, open: []})", [{"messages": [question, message]}])
    assert "input" not in {tree["tag"] for tree, _ in elements([known])}, "whoever draws looks once"


ANSWER = [
    "**Bo",
    "ld** <img src=x onerror=\"document.title='hacked'\">\n\n",
    "- [x](javascript:",
    "alert(1))\n\n",
    r"\[ a*b*c \\ \{ d \} \]",
]
READY = """
await until(() => $("model").value);
"""
ASKS_AND_RELOADS = """
if (!document.querySelector(".turn")) {
  $("message").value = "Say <b>it</b>";
  $("form").requestSubmit();
  await until(() => document.querySelector(".facts")?.textContent);
  location.reload();
  await until(() => false);
}
let refused = false;
try { $("said").innerHTML = "<b>"; } catch { refused = true; }
const models = [...$("model").options].map(one => one.value);
const seen = {refused, models, title: document.title, chats: $("chats").innerText, log: $("log").innerHTML};
"""
FUNCTION = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
CUSTOM = {"type": "custom", "custom": {"name": "sql"}}
CALLS = f"""
$("tools").value = JSON.stringify([{json.dumps(FUNCTION)}, {json.dumps(CUSTOM)}]);
$("tools").dispatchEvent(new Event("change"));
$("message").value = "What is the weather in Reykjavik?";
$("form").requestSubmit();
await until(() => document.querySelector("[data-call]"));
const [weather, rows] = document.querySelectorAll("[data-call]");
weather.value = "fog";
rows.value = "no rows";
document.querySelector("[data-action=results]").click();
await until(() => $("log").innerText.includes("It is foggy."));
const seen = {{log: $("log").innerHTML}};
"""
IMAGES = """
async function picture(width, height, type) {
  const canvas = Object.assign(document.createElement("canvas"), {width, height});
  canvas.getContext("2d").fillRect(0, 0, 1, 1);
  return new File([await new Promise(done => canvas.toBlob(done, type))], "one", {type});
}
function given(...files) {
  const data = new DataTransfer();
  for (const file of files) data.items.add(file);
  return data;
}
const count = () => document.querySelectorAll("#attached img").length;
const blind = $("attach").hidden;
$("model").value = "seeing";
$("model").dispatchEvent(new Event("change"));
const seeing = !$("attach").hidden;
$("files").files = given(await picture(4000, 1000, "image/jpeg"), new File(["x"], "text.txt")).files;
$("files").dispatchEvent(new Event("change"));
await until(() => count() === 1 && !$("problem").hidden);
const problem = $("problem").textContent;
const [small] = [await picture(3, 2, "image/png")];
$("message").dispatchEvent(new ClipboardEvent("paste", {clipboardData: given(small), cancelable: true}));
await until(() => count() === 2);
document.dispatchEvent(new DragEvent("drop", {dataTransfer: given(small), cancelable: true}));
await until(() => count() === 3);
$("attached").querySelectorAll("button")[1].click();
const labels = [...$("attached").querySelectorAll("button")].map(one => one.getAttribute("aria-label"));
localStorage.setItem("spare", "x".repeat(4096));
for (let room = 2 ** 23, name = 0; room >= 64;) {
  try { localStorage.setItem(`junk${name++}`, "x".repeat(room)); } catch { room /= 2; }
}
localStorage.removeItem("spare");
$("form").requestSubmit();
await until(() => document.querySelector(".facts")?.textContent);
const [, ...sizes] = [0, ...document.querySelectorAll(".turn.user img")].map(one => one && one.naturalWidth);
const kept = Object.keys(localStorage).find(name => name.startsWith("quire.chat."));
const lost = kept && JSON.parse(localStorage.getItem(kept)).messages[0].lost;
localStorage.clear();
const seen = {blind, seeing, problem, labels, sizes, lost, title: document.title};
"""
OTHER_TABS = """
const ask = text => { $("message").value = text; $("form").requestSubmit(); };
const stored = () => Object.keys(localStorage).map(name => JSON.parse(localStorage.getItem(name)));
const texts = ({messages}) => messages.map(one => one.content);
// What another tab says in the conversation of that title.
function elsewhere(title, text) {
  const one = stored().find(one => one.title === title);
  one.leaf = one.messages.push({role: "user", content: text, parent: one.leaf}) - 1;
  one.changed += 1000;
  localStorage.setItem(`quire.chat.${one.id}`, JSON.stringify(one));
}
const answers = count => until(() => document.querySelectorAll(".facts:not(:empty)").length === count);
ask("One");
await answers(1);
elsewhere("One", "told");
dispatchEvent(new StorageEvent("storage"));
const log = $("log").innerText;
elsewhere("One", "not told");
ask("Two");
await answers(2);
const one = texts(stored()[0]);
$("fresh").click();
ask("Set");
const other = stored().find(one => one.title === "Set");
other.settings.temperature = "0.5";
other.changed += 1000;
localStorage.setItem(`quire.chat.${other.id}`, JSON.stringify(other));
dispatchEvent(new StorageEvent("storage"));
await answers(1);
const set = stored().filter(one => one.title === "Set").map(one => [one.settings.temperature, texts(one)]);
$("fresh").click();
ask("Late");
elsewhere("Late", "at the same time");
dispatchEvent(new StorageEvent("storage"));
await answers(1);
const late = stored().filter(one => one.title === "Late").map(texts).sort();
$("fresh").click();
ask("Again");
await answers(1);
elsewhere("Again", "in between");
const buttons = () => [...document.querySelectorAll("#log button")];
const press = name => buttons().find(one => one.textContent === name).click();
press("Regenerate");
await answers(1);
elsewhere("Again", "and then");
press("Edit");
$("edited").value = "Once more";
elsewhere("Again", "and still");
$("edited").dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}));
await answers(1);
elsewhere("Again", "at last");
$("temperature").value = "0.7";
$("temperature").dispatchEvent(new Event("change"));
const last = stored().find(one => one.title === "Again"), {temperature} = last.settings;
const seen = {log, one, late, set, shown: $("log").innerText, again: texts(last), temperature};
"""
ENDED_ELSEWHERE = """
$("message").value = "One";
$("message").dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", keyCode: 229, bubbles: true}));
const sent = document.querySelectorAll(".turn").length;
$("form").requestSubmit();
await until(() => document.querySelector(".cursor"));
document.querySelector("#chats [data-action=open]").click();
await until(() => document.querySelector(".facts")?.textContent);
const own = $("log").innerText;
const name = Object.keys(localStorage).find(one => one.startsWith("quire.chat."));
const one = JSON.parse(localStorage.getItem(name));
one.messages[1].content = "All that another tab was told.";
one.changed += 1000;
localStorage.setItem(name, JSON.stringify(one));
$("message").value = "Two";
$("form").requestSubmit();
await until(() => document.querySelectorAll(".facts:not(:empty)").length === 2);
const texts = JSON.parse(localStorage.getItem(name)).messages.map(({content}) => content);
const seen = {sent, own, texts};
"""
TYPED = """
$("message").value = "One";
$("form").requestSubmit();
await until(() => document.querySelector(".facts")?.textContent);
$("log").append("not drawn anew");
const disabled = $("send").disabled;
$("message").value = "Two\\nlines";
$("message").dispatchEvent(new Event("input"));
const seen = {log: $("log").textContent, disabled: [disabled, $("send").disabled]};
"""
RESULTS_ELSEWHERE = """
$("tools").value = JSON.stringify([{type: "function", function: {name: "f", parameters: {type: "object"}}}]);
$("tools").dispatchEvent(new Event("change"));
$("message").value = "How is it?";
$("form").requestSubmit();
await until(() => document.querySelector("[data-call]"));
const name = Object.keys(localStorage).find(one => one.startsWith("quire.chat."));
const one = JSON.parse(localStorage.getItem(name)), [call] = one.messages[1].tool_calls;
one.messages.push({role: "tool", tool_call_id: call.id, name: "f", content: "fog", parent: 1});
one.messages.push({role: "assistant", model: "m", content: "Foggy.", tool_calls: [], parent: 2});
one.leaf = 3;
one.changed += 1000;
localStorage.setItem(name, JSON.stringify(one));
document.querySelector("[data-action=results]").click();
const roles = JSON.parse(localStorage.getItem(name)).messages.map(({role}) => role);
const seen = {log: $("log").innerText, roles};
"""
COMPARED = """
$("compare").open = true;
const checks = () => [...$("others").querySelectorAll("input")];
const [first, second] = checks();
first.focus();
first.click();
const focused = document.activeElement === first;
second.click();
const before = checks().map(one => one.checked), count = $("count").textContent;
$("model").value = "other";
$("model").dispatchEvent(new Event("change"));
const after = checks().map(one => [one.value, one.checked]);
const seen = {focused, before, count, after, told: $("count").textContent};
"""
BLOCKED = """
let blocked = false;
try { localStorage; } catch { blocked = true; }
const problem = $("problem").textContent;
$("message").value = "Hello";
$("form").requestSubmit();
await until(() => document.querySelector(".facts")?.textContent);
const seen = {blocked, problem, chats: $("chats").innerText, log: $("log").innerText};
"""
WRONG_KEY = """
const type = key => {
  $("key").value = key;
  $("key").dispatchEvent(new Event("change"));
};
type("schlüssel ✓");
await until(() => !$("model").value);
const told = $("model").innerText, asked = !$("locked").hidden;
type("");
await until(() => $("model").value);
const seen = {told, asked, model: $("model").value};
"""
MANY_IMAGES = """
for (let count = 0; count < 60; count++) {
  const item = document.createElement("li");
  item.append(Object.assign(document.createElement("img"), {alt: "", width: 80}));
  $("attached").append(item);
}
const send = $("send").getBoundingClientRect(), list = $("attached").getBoundingClientRect();
const seen = {list: list.height, above: list.top, below: innerHeight - send.bottom};
"""


async def test_a_browser_shows_an_answer_and_keeps_it(browse, tokenizer, backend):
    """A script in the page asks, reloads the page and tells what it sees."""
    encoder = [replace(one, info={**one.info, "bidirectional": True}) for one in leases_of("encoder")]
    backend.lease_list = [*encoder, *leases_of("m")]

    async def generate(request, context):
        yield TextChunk(prompt=PromptInfo(tokens=1))
        for place, text in enumerate(ANSWER):
            reason = STOP if text is ANSWER[-1] else NOT_FINISHED
            yield TextChunk(deltas=[TextDelta(text=text, token_ids=[place], finish_reason=reason)])

    tokenizer.generate = generate
    shown = await browse("/", READY + ASKS_AND_RELOADS)
    assert shown["refused"], "the policy does not keep scripts from making HTML"
    assert shown["models"] == ["m"], "an encoder cannot chat"
    assert shown["title"] == "Say <b>it</b> – Quire"
    assert "Say <b>it</b>" in shown["chats"]
    assert ">Say &lt;b&gt;it&lt;/b&gt;</p>" in shown["log"]
    assert "<strong>Bold</strong> &lt;img src=x onerror=" in shown["log"]
    assert "<li>[x](javascript:alert(1))</li>" in shown["log"]
    assert r"<p>\[ a*b*c \\ \{ d \} \]</p>" in shown["log"]
    assert f"{len(ANSWER)} tokens" in shown["log"]


async def test_a_browser_folds_calls_and_sends_their_results(browse, tokenizer):
    """The tools of the settings are offered; what is typed as a call's result comes back with its id."""
    told = []

    async def generate(request, context):
        told.append(request)
        form = AnswerFormat(call_begin=["<tool_call>"], call_end="</tool_call>", call_syntax=JSON_CALLS)
        yield TextChunk(prompt=PromptInfo(tokens=1, format=form))
        calls = (
            '<tool_call>{"name": "get_weather", "arguments": {"city": "Reykjavik"}}</tool_call>'
            '<tool_call>{"name": "sql", "arguments": {"input": "select fog"}}</tool_call>'
        )
        text = calls if len(told) == 1 else "It is foggy."
        yield TextChunk(deltas=[TextDelta(text=text, token_ids=[7], finish_reason=STOP)])

    tokenizer.generate = generate
    shown = await browse("/", READY + CALLS)
    assert "<details><summary>Call of get_weather</summary>" in shown["log"]
    assert '{"city": "Reykjavik"}' in shown["log"]
    assert "<details><summary>Result of get_weather</summary>" in shown["log"]
    assert "<summary>Call of sql</summary><pre><code>select fog</code></pre>" in shown["log"]
    assert "<details><summary>Result of sql</summary>" in shown["log"]
    function, custom = json.loads(told[0].chat.tools)
    assert (function, custom["function"]["name"]) == (FUNCTION, "sql")
    asked, called, *results = told[1].chat.messages
    assert (asked.role, called.role, *(one.role for one in results)) == ("user", "assistant", "tool", "tool")
    assert [one.tool_call_id for one in results] == [call.id for call in called.tool_calls]
    assert [one.content for one in results] == ["fog", "no rows"]
    assert json.loads(called.tool_calls[1].arguments) == {"input": "select fog"}


async def test_a_browser_sends_images_that_are_chosen_pasted_and_dropped(browse, tokenizer, backend, gateway):
    """A large one is reduced, one is removed again, and where there is no room none is kept."""
    seeing = [replace(one, info={**one.info, "images": True}) for one in leases_of("seeing")]
    backend.lease_list = [*leases_of("m"), *seeing]
    files = {}

    class Store:
        async def put(self, name, image, seconds):
            files[name] = image

        async def drop(self, names):
            pass

    gateway.app.state.generator._image_store = Store()
    shown = await browse("/", READY + IMAGES)
    assert (shown["blind"], shown["seeing"]) == (True, True)
    assert shown["problem"] == "'text.txt' is no image that this browser reads."
    assert shown["labels"] == ["Remove image 1", "Remove image 2"]
    assert shown["sizes"] == [2048, 3]
    assert shown["lost"] == "2 images"
    assert shown["title"] == "Images – Quire"
    (asked,) = tokenizer.requests
    (message,) = asked.chat.messages
    assert [files[image.file.name][:3] for image in message.images] == [b"\xff\xd8\xff", b"\x89PN"]


async def says_so(request, context):
    yield TextChunk(prompt=PromptInfo(tokens=1))
    yield TextChunk(deltas=[TextDelta(text="So.", token_ids=[7], finish_reason=STOP)])


async def test_what_another_tab_says_in_a_conversation_is_not_lost(browse, tokenizer):
    tokenizer.generate = says_so
    shown = await browse("/", READY + OTHER_TABS)
    assert "told" in shown["log"]
    assert shown["one"] == ["One", "So.", "told", "not told", "Two", "So."]
    assert shown["set"] == [["0.5", ["Set", "So."]]], "a setting makes no conversation of its own"
    assert shown["late"] == [["Late", "", "at the same time"], ["Late", "So."]]
    assert "at last" in shown["shown"]
    said = ["Again", "So.", "in between", "So.", "and then", "and still", "Once more", "So.", "at last"]
    assert (shown["again"], shown["temperature"]) == (said, "0.7")


async def test_an_answer_outlasts_a_click_on_its_chat_and_is_taken_from_another_tab(browse, tokenizer):
    tokenizer.generate = says_so
    shown = await browse("/", READY + ENDED_ELSEWHERE)
    assert shown["sent"] == 0, "the key is the input method's"
    assert "So." in shown["own"]
    assert shown["texts"] == ["One", "All that another tab was told.", "Two", "So."]


async def test_what_is_typed_draws_no_conversation_anew(browse, tokenizer):
    tokenizer.generate = says_so
    shown = await browse("/", READY + TYPED)
    assert shown["log"].endswith("not drawn anew")
    assert shown["disabled"] == [True, False]


async def test_results_that_another_tab_has_sent_are_not_sent_again(browse, tokenizer):
    asked = []

    async def generate(request, context):
        asked.append(request)
        form = AnswerFormat(call_begin=["<tool_call>"], call_end="</tool_call>", call_syntax=JSON_CALLS)
        yield TextChunk(prompt=PromptInfo(tokens=1, format=form))
        call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
        yield TextChunk(deltas=[TextDelta(text=call, token_ids=[7], finish_reason=STOP)])

    tokenizer.generate = generate
    shown = await browse("/", READY + RESULTS_ELSEWHERE)
    assert "Foggy." in shown["log"]
    assert shown["roles"] == ["user", "assistant", "tool", "assistant"]
    assert len(asked) == 1


async def test_models_to_compare_are_chosen_with_the_keyboard(browse, backend):
    """The focus stays at the model that was chosen; the conversation's model is none of the others."""
    backend.lease_list = [*leases_of("m"), *leases_of("other"), *leases_of("third")]
    shown = await browse("/", READY + COMPARED)
    assert (shown["focused"], shown["before"], shown["count"]) == (True, [True, True], "+ 2")
    assert (shown["after"], shown["told"]) == ([["m", False], ["third", True]], "+ 1")


async def test_a_browser_that_keeps_nothing_shows_the_page(browse, blocked, tokenizer):
    tokenizer.generate = says_so
    shown = await browse("/", READY + BLOCKED)
    assert shown["blocked"]
    assert shown["problem"].startswith("This browser lets the page keep nothing")
    assert "Hello" in shown["chats"]
    assert "So." in shown["log"]


async def test_a_browser_asks_again_for_a_key_that_no_header_can_have(browse):
    shown = await browse("/", READY + WRONG_KEY)
    assert shown == {"told": "needs a key", "asked": True, "model": "m"}


async def test_many_images_leave_room_for_the_message(browse):
    shown = await browse("/", READY + MANY_IMAGES, window="390,700")
    assert shown["list"] > 50
    assert shown["above"] > 0
    assert shown["below"] >= 0
