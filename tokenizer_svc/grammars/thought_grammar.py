"""The grammar of what comes before an answer's own grammar: a thought, which is free.

It is in the library's dialect of Lark. There a special token is no text: it stands by its number.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence

from tokenizer_svc.formats.entry import LINE, ThoughtFormat
from tokenizer_svc.formats.formats import ThoughtRules
from tokenizer_svc.formats.mark_suffix import named
from tokenizer_svc.formats.thought_table import THOUGHTS
from tokenizer_svc.grammars.grammar_rules import ANY, GrammarRules, quoted

SPACE = r"\s\x1c-\x1f\x85"
"""White space as Python has it."""
_PLACE = re.compile(r"\$(\w+(?:\|e)?)")


def after_thought(grammar: str, asked: ThoughtRules) -> str:
    """The grammar of a thought and then an answer.

    `grammar`: the answer's, as the library gives it; "": any answer, after a thought that has a budget.
    """
    texts = Texts(asked)
    if not grammar:
        return texts.grammar(texts.thought_first(f"<[{asked.within}]>*", spaced=False))
    answer = texts.said("@answer")
    parts = (
        json.loads(grammar)["grammars"] if grammar.startswith('{"grammars"') else [{"lark_grammar": grammar}]
    )
    whole = {"lark_grammar": texts.grammar(texts.thought_first(answer, spaced=True))}
    return json.dumps({"grammars": [whole, parts[0] | {"name": "answer"}, *parts[1:]]})


class Texts:
    """Rules for texts in a model's formats."""

    def __init__(self, asked: ThoughtRules) -> None:
        self.rules = GrammarRules()
        self.thoughts: ThoughtFormat | None = named(THOUGHTS, asked.thoughts)
        self._asked = asked

    def grammar(self, start: str) -> str:
        """All rules, and the one of a whole answer."""
        return "\n".join(("%llguidance {}", f"start: {start}", *self.rules.lines)) + "\n"

    def thought_first(
        self, answer: str, spaced: bool, begins: Sequence[str] = (), shaped: bool = True
    ) -> str:
        """A thought, which the prompt may have begun, and then the answer.

        `spaced`: the answer does not say itself which space comes before it. `begins`: what begins calls.
        `shaped`: a text that is the answer follows a grammar of its own.
        """
        thoughts = self.thoughts
        if thoughts is None:
            return answer
        if thoughts.message:
            return f"{self._messages(thoughts, begins, shaped)} {answer}"
        begin, rest = self._marked(thoughts)
        space = '("\\n" | "\\n\\n")?' if spaced else ""
        thought = self.rules.add(f"{rest} {space}")
        if thoughts.answer:
            # The prompt may have it.
            answer = f"({self.written(thoughts.answer)})? {answer}"
        if self._asked.thinking:
            return f"{thought} {answer}"
        bare = f" | {self.written(thoughts.end)} {space}" if thoughts.bare_end else ""
        return f"({begin} {thought}{bare})? {answer}"

    def said(self, text: str) -> str:
        """A text that is the answer, with what tells that it is one."""
        thoughts = self.thoughts
        if thoughts is None:
            return text
        head = f"{self.written(thoughts.answer)} " if thoughts.message else ""
        closing = f" ({self.written(thoughts.closing)})?" if thoughts.closing else ""
        return f"{head}{text}{closing}"

    def _messages(self, thoughts: ThoughtFormat, begins: Sequence[str], shaped: bool) -> str:
        """Thoughts and texts that are messages before the answer, each with what begins the next one."""
        found = []
        if thoughts.begin:
            found.append(" ".join((*self._marked(thoughts), self.written(thoughts.message))))
        # Of two texts with the same head the grammar could not tell which is the answer.
        if not shaped or thoughts.said != thoughts.answer:
            end, *more = filter(None, (thoughts.end, thoughts.message))
            parts = (self.written(thoughts.said), self.until(end, begins), *map(self.written, more))
            found.append(" ".join(parts))
        return f"{self.rules.add(' | '.join(found))}*" if found else ""

    def _marked(self, thoughts: ThoughtFormat) -> tuple[str, str]:
        """What begins a thought, and the rest of it."""
        asked = self._asked
        if asked.budget is None:
            return self.written(thoughts.begin), self.until(thoughts.end)
        # Tokens are counted, so marks are tokens, too.
        within = f"<[{asked.within}]>{{0,{asked.budget}}}" if asked.budget else ""
        return f"<[{asked.begin}]>", f"{within} <[{asked.end}]>"

    def until(self, end: str, without: Sequence[str] = (), text: str = ANY) -> str:
        """A text up to the first `end`, with that; see `without`."""
        head, *rest = self.literals(end)
        before = self.without((*without, end), text)
        if not head.startswith("<["):
            # One terminal: where the text alone would end, none could tell.
            before, head = "", self.rules.add(f"{before} {head}", terminal=True)
        return " ".join((before, head, *rest)).strip()

    def without(self, marks: Collection[str], text: str = ANY) -> str:
        """A text without any of the marks. `text`: a regular expression that it follows, too."""
        if not marks:
            return self.rules.add(text, terminal=True)
        found = " | ".join(map(quoted, sorted(marks)))
        return self.rules.add(f"{text} & ~({ANY} ({found}) {ANY})", terminal=True)

    def written(self, text: str, places: Mapping[str, Sequence[str]] | None = None) -> str:
        """A text of a format. `places`: what stands for `$name` and the like."""
        parts: list[str] = []
        for index, part in enumerate(_PLACE.split(text)):
            parts += self.literals(part) if index % 2 == 0 else (places or {})[part]
        return " ".join(parts) or '""'

    def literals(self, text: str) -> list[str]:
        """A text in pieces, with special tokens as such."""
        if not text:
            return []
        marks = {LINE: '"\\n"?'} | {mark: f"<[{token}]>" for mark, token in self._asked.special.items()}
        for mark, spelled in marks.items():
            before, found, after = text.partition(mark)
            if found:
                return [*self.literals(before), spelled, *self.literals(after)]
        return [quoted(text)]
