"""How the shipped model was made and is measured: corpus, tokenizer, recipe, training, evaluation."""
