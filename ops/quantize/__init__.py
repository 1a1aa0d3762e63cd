"""Quantized copies of models, which Quire, vLLM and transformers read: `quire quantize`."""
