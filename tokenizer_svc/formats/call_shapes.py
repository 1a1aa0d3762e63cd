"""Entries of `call_table.py` for spellings that several models share."""

from proto.tokenizer_pb2 import ELEMENTS, JSON_CALLS
from tokenizer_svc.formats.entry import CallFormat

AS_JSON = '{"name": "$name", "arguments": $arguments}'
"""One call."""


def listed(*signs: str, begin: str, end: str = "", call: str = AS_JSON) -> CallFormat:
    """A list of calls in JSON. `begin`, `end`: around it. `call`: each of them."""
    return CallFormat(
        signs=(signs,),
        syntax=JSON_CALLS,
        begin=(begin,),
        end=end,
        call=call,
        first=f"{begin}[",
        between=", ",
        last=f"]{end}",
    )


def tagged(begin: str, end: str, token: str = "") -> CallFormat:
    """Each call in JSON, on lines of its own. `begin`, `end`: around it. `token`: as in `CallFormat`."""
    return CallFormat(
        signs=((begin,),),
        syntax=JSON_CALLS,
        begin=(begin,),
        end=end,
        call=f"{begin}\n{AS_JSON}\n{end}",
        between="\n",
        token=token,
    )


def invoked(*signs: str, calls: str, mark: str = "", told: str = "") -> CallFormat:
    """Elements with names in attributes. `calls`: the element around all calls. `mark`: begins the name of
    every tag. `told`: a further attribute of arguments."""
    return CallFormat(
        signs=(signs,),
        syntax=ELEMENTS,
        begin=(f"<{mark}{calls}>",),
        end=f"</{mark}{calls}>",
        call=f'<{mark}invoke name="$name">\n$arguments</{mark}invoke>\n',
        argument=f'<{mark}parameter name="$key"{told}>$value</{mark}parameter>\n',
        first=f"<{mark}{calls}>\n",
        last=f"</{mark}{calls}>",
    )


def marked(*signs: str, mark: str, calls: str) -> CallFormat:
    """DeepSeek's elements, which tell texts from JSON."""
    return invoked(*signs, calls=calls, mark=mark, told=' string="$text"')


def keyed(
    *signs: str, prefix: str = "", pair: str = "arg", separator: str = "", around: str = ""
) -> CallFormat:
    """GLM's elements: a key, then its value. `prefix`: begins the name of every tag. `pair`: begins the names
    of the tags of a key and a value, behind the prefix. `separator`: follows the name of a function.
    `around`: the element around all calls. Some models write new lines, others do not."""

    def tags(name: str) -> tuple[str, str]:
        return f"<{prefix}{name}>", f"</{prefix}{name}>"

    (begin, end), (key, key_end), (value, value_end) = map(
        tags, ("tool_call", f"{pair}_key", f"{pair}_value")
    )
    first, last = tags(around) if around else ("", "")
    return CallFormat(
        signs=(signs,),
        syntax=ELEMENTS,
        begin=(begin,),
        end=end,
        delimiters=(first, last) if around else (),
        call=f"{begin}$name{separator}\n?$arguments{end}",
        argument=f"{key}$key{key_end}\n?{value}$value{value_end}\n?",
        first=f"{first}\n?" if around else "",
        between="\n?",
        last=f"\n?{last}" if around else "",
    )
