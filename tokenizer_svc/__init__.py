"""The tokenizer service: text on its left, tokens on its right.

`tokenizer.py` holds what a model directory says of text, `detokenizer.py` and `stops.py` turn
tokens into text as they come, `sequence.py` and `generation.py` put them together for one request,
`embedding.py` is for texts that are only read, and `service.py` does the I/O.
"""
