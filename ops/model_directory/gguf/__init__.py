"""GGUF files, the format of llama.cpp: one file with configuration, tokenizer and weights."""
