"""A drawing of matplotlib's in a third of the bytes: the same to a tenth of a point."""

import re
from collections import Counter
from xml.etree import ElementTree as XML

NAMESPACE = "http://www.w3.org/2000/svg"
FRACTION = re.compile(r"-?\d+\.\d+")
FONTS = re.compile(r"font-family: [^;]*")
NO_ROTATION = re.compile(r"rotate\(-?0 .*\)")
PLACES = ("d", "x", "y", "transform", "width", "height")
"""Attributes whose numbers are points."""

XML.register_namespace("", NAMESPACE)
XML.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def shrunk(svg: str) -> str:
    """The same drawing: coordinates have one digit after the point, fonts are named by their kind, each style
    is written once, and groups that only carry a name are gone."""
    root = XML.fromstring(svg)
    _unwrap(root)
    elements = list(root.iter())
    for element in elements:
        element.text, element.tail = (element.text or "").strip(), None
        for name in PLACES:
            if value := element.get(name):
                element.set(name, FRACTION.sub(_rounded, " ".join(value.split())))
        if style := element.get("style"):
            element.set("style", FONTS.sub("font-family: sans-serif", style))
        if NO_ROTATION.fullmatch(element.get("transform", "")):
            del element.attrib["transform"]
    _name_styles(root, elements)
    for element in root:
        element.tail = "\n"
    return XML.tostring(root, encoding="unicode") + "\n"


def _unwrap(parent: XML.Element) -> None:
    """Put the children of each group that changes nothing in the group's place."""
    children: list[XML.Element] = []
    for child in parent:
        _unwrap(child)
        is_plain = child.tag == f"{{{NAMESPACE}}}g" and child.attrib.keys() <= {"id"}
        children += child if is_plain else [child]
    parent[:] = children


def _rounded(number: re.Match[str]) -> str:
    return f"{round(float(number[0]), 1):.15g}"


def _name_styles(root: XML.Element, elements: list[XML.Element]) -> None:
    """Give each style that several elements have a class, in a style sheet at the drawing's end."""
    counts = Counter(element.get("style") for element in elements)
    repeated = [style for style, count in counts.items() if style and count > 1]
    classes = {style: f"s{number}" for number, style in enumerate(repeated)}
    for element in elements:
        if name := classes.get(element.get("style", "")):
            del element.attrib["style"]
            element.set("class", name)
    sheet = XML.SubElement(root, f"{{{NAMESPACE}}}style")
    sheet.text = "\n".join(f".{name}{{{style}}}" for style, name in classes.items())
