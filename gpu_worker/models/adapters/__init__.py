"""LoRA adapters (Hu et al. 2021): low-rank additions to the weights of products, several beside one model.

    config.py      what a directory of PEFT says of an adapter
    adapter.py     its factors, by the name of the product that they belong to
    gguf_rows.py   the factors with their rows in the order of a GGUF file
    trace.py       which rows of which tensors each product of a layer has
    products.py    products to whose results the adapters of a step's tokens are added
    adapters.py    all adapters of a worker, laid out beside the products of a decoder

Steps without adapters are computed as if there were none.
"""
