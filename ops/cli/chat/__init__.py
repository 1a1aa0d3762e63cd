"""A conversation in the terminal, streamed from the gateway.

session       a turn after the other: read, ask, show
prompt        where turns come from: a terminal with history and keys, or lines of a pipe
commands      what begins with a slash
conversation  messages, system prompt, model and parameters
server        an OpenAI-compatible server: its models, and an answer as deltas
screen        where answers go: Markdown in a terminal, plain text in a pipe
pace          how fast an answer came
"""

from ops.cli.chat.session import chat

__all__ = ["chat"]
