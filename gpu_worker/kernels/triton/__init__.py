"""The back end for GPUs: kernels in Triton, each with plain PyTorch as its reference."""
