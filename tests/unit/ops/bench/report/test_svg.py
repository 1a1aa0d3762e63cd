"""A drawing made small is the same drawing."""

import io
import re
from xml.etree import ElementTree as XML

import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

from ops.bench.report.svg import shrunk

SVG = "{http://www.w3.org/2000/svg}"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@pytest.fixture(scope="module")
def drawing() -> str:
    figure = Figure(figsize=(6, 3))
    left, right = figure.subplots(1, 2)
    left.bar(range(5), [0.123456, 2, 3, 4, 5], yerr=0.777, label="<a & b>")
    left.set_ylabel("turned", rotation=90)
    right.plot([1, 10, 300], [5, 50, 500], marker="o")
    right.set(xscale="log", yscale="log")
    figure.legend()
    written = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(written, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return written.getvalue()


def drawn(svg: str) -> list[XML.Element]:
    """What leaves a mark, in its order."""
    marks = {f"{SVG}{kind}" for kind in ("path", "use", "text", "tspan", "rect")}
    return [element for element in XML.fromstring(svg).iter() if element.tag in marks]


def test_every_mark_is_where_it_was(drawing) -> None:
    before, after = drawn(drawing), drawn(shrunk(drawing))
    texts = [[(one.tag, (one.text or "").strip()) for one in both] for both in (before, after)]
    assert texts[0] == texts[1]
    for old, new in zip(before, after, strict=True):
        for name in ("d", "x", "y"):
            places = [[float(each) for each in NUMBER.findall(one.get(name, ""))] for one in (old, new)]
            assert places[1] == pytest.approx(places[0], abs=0.051)


def test_styles_are_the_same_but_for_the_name_of_the_font(drawing) -> None:
    small = shrunk(drawing)
    classes = dict(re.findall(r"\.(s\d+)\{([^}]*)\}", small))
    for old, new in zip(drawn(drawing), drawn(small), strict=True):
        style = classes[new.get("class")] if "class" in new.attrib else new.get("style")
        wanted = old.get("style")
        assert style == (wanted and re.sub(r"font-family: [^;]*", "font-family: sans-serif", wanted))


def test_what_is_referred_to_is_there(drawing) -> None:
    small = shrunk(drawing)
    ids = set(re.findall(r' id="(\w+)"', small))
    referred = set(re.findall(r"#([a-z]\w{10})\b", small))
    assert referred
    assert referred <= ids
    assert "rotate(-90" in small


def test_it_is_small(drawing) -> None:
    assert len(shrunk(drawing)) < 0.45 * len(drawing)
