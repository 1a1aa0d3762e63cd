"""The kernels of the CPU back end, each alone."""

from collections.abc import Mapping
from typing import Any

from ops.bench.report.markdown import cell, number, table

Results = Mapping[str, Any]

NAMES = {
    "bf16": "bfloat16",
    "bf16_parts": "bfloat16 in two parts",
    "onednn_bf16": "oneDNN, bfloat16",
    "plain_read": "plain sum",
}


def products(results: Results, drawings: str) -> list[str]:
    blocks = [
        f"{results['threads']} threads, {results['instruction_set']}; weights come from memory as in a model."
    ]
    for model, by_product in results.items():
        if isinstance(by_product, Mapping):
            blocks += _of_model(model, by_product)
    return blocks


def _of_model(model: str, by_product: Results) -> list[str]:
    counts = list(next(iter(by_product.values())))
    few, many = counts[0], counts[-1]
    times = [
        (product, *(_beside_onednn(by_rows[rows]) for rows in counts))
        for product, by_rows in by_product.items()
    ]
    kinds = list(next(iter(by_product.values()))[few])
    rates = [
        (product, *(_rate(by_rows[few][kind], "gb_s") for kind in kinds))
        for product, by_rows in by_product.items()
    ]
    speeds = [
        (product, *(_rate(by_rows[many][kind], "gflop_s") for kind in kinds))
        for product, by_rows in by_product.items()
    ]
    head = ("product", *(NAMES.get(kind, kind) for kind in kinds))
    return [
        f"Products of a model of {model} parameters with bfloat16 weights, by rows: microseconds, and in "
        "brackets over oneDNN's in the same run, where it multiplies bfloat16. Below 1 is faster.",
        table(("product", *counts), times),
        f"With {few} row it is memory that counts: GB/s of weights, and of a plain sum over much memory.",
        table(head, rates),
        f"With {many} rows it is arithmetic: GFLOP/s.",
        table(head, speeds),
    ]


def _beside_onednn(kinds: Results) -> str:
    ours, theirs = kinds["bf16"]["us"], kinds.get("onednn_bf16")
    return f"{number(ours)} ({ours / theirs['us']:.2f})" if theirs else number(ours)


def _rate(found: Results, unit: str) -> str:
    return cell(found.get(unit))


def attention(results: Results, drawings: str) -> list[str]:
    blocks = [
        f"{results['threads']} threads, {results['instruction set']}; beside attention in plain PyTorch."
    ]
    for kind, unit, about in (
        ("decodes", "GB/s", "One token of each row: keys and values read"),
        ("chunks", "GFLOP/s", "A chunk of a prompt"),
    ):
        rows = [
            (
                case["shape"],
                *(case[key] for key in ("rows", "tokens", "context")),
                case[unit],
                case[f"{unit} of PyTorch"],
                case[unit] / case[f"{unit} of PyTorch"],
            )
            for case in results[kind]
        ]
        head = ("heads", "rows", "tokens", "context", unit, "plain PyTorch", "times as fast")
        blocks += [f"{about}, {unit}.", table(head, rows)]
    return blocks
