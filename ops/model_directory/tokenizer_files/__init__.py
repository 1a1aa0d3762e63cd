"""Models without a tokenizer.json, which is made of the files that they have instead."""
