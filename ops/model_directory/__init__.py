"""What lies in a model's directory, as Hugging Face lays it out or in a GGUF file: found and checked."""
