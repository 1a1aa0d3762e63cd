"""Grammars that answers follow, in the library's dialect of Lark.

`trials.py` compiles what a request asks for, in a process (`grammar_main.py`), and keeps what it finds.
`grammar_text.py` reads a client's grammar, and `schema_*.py` are for JSON Schemas. `call_grammar.py` is for
calls of functions, `input_grammar.py` for the inputs of custom tools, and `thought_grammar.py` for what a
model thinks before its answer.
"""
