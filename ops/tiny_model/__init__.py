"""The small model that ships with Quire: its corpus, tokenizer, training recipe and weights."""
