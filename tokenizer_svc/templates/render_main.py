"""`python -m tokenizer_svc.templates.render_main`: renders one chat template, within bounds.

See `renderer.py`.
"""

import signal
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from tokenizer_svc.bounded import answer, question, set_bounds
from tokenizer_svc.errors import InvalidRequestError, ModelDirectoryError
from tokenizer_svc.templates.template import USUAL, ChatTemplate, Rendering
from tokenizer_svc.templates.tools_as_text import Spelling

MEMORY = 2**30
"""Address space of the process. Bytes."""
LATE_SECONDS = 0.5
"""Further processor time, the system's for it too, that ends the process: code in C may look at no signal."""
MOST_TEMPLATES = 16
"""Compiled templates of clients that are kept."""


class TooSlow(BaseException):
    """A template that computes for too long. No `Exception`: what the template calls may handle these."""


class Bounded:
    """Runs work for some seconds of processor time at most. What does not stop then ends the process."""

    def __init__(self) -> None:
        self._running = False
        self._seconds = 0.0
        signal.signal(signal.SIGVTALRM, self._interrupt)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def __call__(self, seconds: float, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of `work`. Raises `TooSlow`, within whatever the work does."""
        self._running, self._seconds = True, seconds
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        signal.setitimer(signal.ITIMER_PROF, seconds + LATE_SECONDS)
        try:
            return work()
        finally:
            self._running = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _interrupt(self, *_: object) -> None:
        if self._running:
            raise TooSlow(f"it computes for more than {self._seconds:g} s")


def main() -> None:
    """Compile the template, then render until the pipe is closed."""
    set_bounds(MEMORY)
    if (first := question()) is None:
        return
    spelling = None if first["spelling"] is None else Spelling(**first["spelling"])
    bounded, templates = Bounded(), Templates(first["variables"], spelling)
    own = first["source"], first["tool_source"]
    answer(tried(bounded, first["seconds"], lambda: templates.set_own(*own)))
    while (asked := question()) is not None:
        answer(tried(bounded, asked["seconds"], lambda: templates.rendered(asked)))


def tried(bounded: Bounded, seconds: float, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer that `work` makes within `seconds`, or one that says why it makes none."""
    try:
        return bounded(seconds, work)
    except InvalidRequestError as error:
        return {"param": error.param, "error": str(error)}
    except ModelDirectoryError as error:
        return {"error": str(error)}
    except (Exception, TooSlow) as error:  # of time or memory, wherever it struck
        reason = f"the chat template: {error or type(error).__name__}"
        return {"param": "messages", "error": reason, "slow": isinstance(error, TooSlow)}


class Templates:
    """The model's own templates, and the newest ones that came with conversations."""

    def __init__(self, variables: dict[str, str], spelling: Spelling | None = None) -> None:
        self._variables, self._spelling = variables, spelling
        self._own: ChatTemplate | None = None
        self._for_tools: ChatTemplate | None = None
        self._others: OrderedDict[str, ChatTemplate] = OrderedDict()

    def set_own(self, source: str, tool_source: str | None = None) -> dict[str, Any]:
        """Compile the model's template, and that for functions. Raises `ModelDirectoryError`."""
        self._own = self._compiled(source)
        self._for_tools = self._own if tool_source is None else self._compiled(tool_source)
        return {}

    def rendered(self, question: dict[str, Any]) -> dict[str, Any]:
        """A conversation as text. Raises `InvalidRequestError`."""
        rendering = Rendering(**question["rendering"]) if "rendering" in question else USUAL
        template = self._other(rendering.template) if rendering.template else self._own_for(question["tools"])
        arguments = question["messages"], question["arguments"], question["tools"], rendering
        return {"text": template.render(*arguments)}

    def _own_for(self, tools: Sequence[Any]) -> ChatTemplate:
        """The model's template for a conversation with these functions."""
        assert self._own is not None
        assert self._for_tools is not None
        return self._for_tools if tools and not self._for_tools.refuses_tools else self._own

    def _other(self, source: str) -> ChatTemplate:
        if source not in self._others:
            try:
                self._others[source] = self._compiled(source)
            except ModelDirectoryError as error:
                raise InvalidRequestError("chat_template", str(error)) from error
            if len(self._others) > MOST_TEMPLATES:
                self._others.popitem(last=False)
        self._others.move_to_end(source)
        return self._others[source]

    def _compiled(self, source: str) -> ChatTemplate:
        return ChatTemplate(source, self._variables, self._spelling)


if __name__ == "__main__":
    main()
