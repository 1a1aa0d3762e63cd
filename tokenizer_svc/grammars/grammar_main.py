"""`python -m tokenizer_svc.grammars.grammar_main`: compiles grammars within bounds; see `trials.py`.

The process reads the vocabulary once. For each grammar it forks: what takes too much ends the child alone.
"""

import gc
import os
import signal
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from ops.model_directory.grammars import GrammarError, Vocabulary
from ops.runtime.lifeline import tie_to_parent
from tokenizer_svc.bounded import answer, question, set_bounds
from tokenizer_svc.errors import PanicError
from tokenizer_svc.formats.formats import ThoughtRules
from tokenizer_svc.grammars.call_rules import CallRules, Function
from tokenizer_svc.grammars.grammar_text import grammar_text
from tokenizer_svc.grammars.thought_grammar import after_thought
from tokenizer_svc.model.panic import no_panic

MEMORY = 2**31
"""Address space of the process. Bytes."""


def main() -> None:
    """Read the vocabulary, then compile until the pipe is closed.

    A question is one message, its answer any number of them; the last one says how it ended.
    """
    set_bounds(MEMORY)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends a child, whatever the library does
    if (first := question()) is None:
        return
    directory, size, end_tokens = first
    try:
        vocabulary = Vocabulary(Path(directory), size, end_tokens)
    except GrammarError as error:
        answer({"error": str(error)})
        answer({"ended": 0})
        return
    gc.freeze()  # children share what there is, and a collection would write to it
    answer({"ended": 0})
    while (asked := question()) is not None:
        if child := os.fork():
            answer({"ended": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])})
            continue
        tie_to_parent()
        try:
            compiled(vocabulary, asked)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)


def compiled(vocabulary: Vocabulary, asked: dict[str, Any]) -> None:
    """Answer one question, within its `seconds` of processor time: after them SIGPROF ends this process."""
    seconds = asked.pop("seconds")
    signal.setitimer(signal.ITIMER_PROF, seconds)
    found = (each_tried if asked["kind"] == "calls" else tried)(vocabulary, **asked)
    if "rules" in found:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        found = tried(vocabulary, **asked | {"text": found["rules"]})
    signal.setitimer(signal.ITIMER_PROF, 0)
    answer(found)


def each_tried(vocabulary: Vocabulary, kind: str, text: str, lenient: bool) -> dict[str, Any]:
    """As `tried`, of calls: each function alone, to name one that is wrong or takes too long.

    Of a function that need not be followed, and cannot be, the schema is left out but for the names of
    arguments, then these, too. If that does not help, the format of calls has no way to spell it: the
    function is left out where others can be called. If all others are right, the `rules` with these, and no
    grammar, unless one function is all that the answer may have.
    """
    rules, taken, grammar, refused = CallRules.read(text), list[Function](), {}, {}
    for function in rules.functions:
        answer({"at": function.name})
        named = replace(function, loose=True)
        for each in (function,) if function.bound else (function, named, replace(named, parameters={})):
            found = tried(vocabulary, kind, rules.alone(each).write(), lenient)
            if "error" not in found:
                grammar = found
                taken.append(each)
                break
            refused = found | {"error": f"function {function.name!r}: {found['error']}"}
            if function.bound or "scarce" in found:
                return refused
    if not taken:
        return refused
    answer({"at": "", "loose": len(rules.functions) - sum(not each.loose for each in taken)})
    is_whole = len(taken) == 1 and not rules.text_schema
    return grammar if is_whole else {"rules": replace(rules, functions=taken).write()}


def tried(
    vocabulary: Vocabulary,
    kind: str,
    text: str,
    lenient: bool,
    before: dict[str, Any] | None = None,
    compact: bool = False,
) -> dict[str, Any]:
    """The grammar as the worker takes it, or why there is none. `before`: a `ThoughtRules`. `compact`: as in
    `grammar_text`."""
    try:
        with no_panic():
            grammar = grammar_text(kind, text, lenient, vocabulary.special, compact)
            if before is not None:
                grammar = after_thought(grammar, ThoughtRules(**before))
            vocabulary.walk(vocabulary.matcher(grammar))
    except MemoryError:
        return {"error": "it takes too much memory", "scarce": True}
    except (GrammarError, PanicError) as error:
        return {"error": str(error)}
    return {"text": grammar}


if __name__ == "__main__":
    main()
