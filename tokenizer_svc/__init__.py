"""The tokenizer service: text on its left, tokens on its right.

model/      what a model directory defines: vocabulary, images, poolings, sampling defaults
templates/  chat templates, and the processes that render them
formats/    how models spell thoughts and calls of functions
grammars/   what an answer must look like, and the processes that try grammars
requests/   from a request to tokens, and to rules for the tokens of its answer
answers/    from tokens back to text, as they come
service.py  the calls of the gateway, and those to the scheduler
"""

import os

# A child is a fork at first. gRPC, with which traces are sent, would start its threads there before the
# program is run, but the files that they wait for are closed by then: one child in fifty aborted. Read once,
# when gRPC is loaded.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
