"""Names of a checkpoint's tensors for each parameter of a model of transformers.

transformers renames tensors when it loads them, and stacks those of single experts. Its own rules are asked.
Where it has none, as for GGUF files, single experts are known by their numbers.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

Parts = tuple[tuple[str, ...], ...]
"""Of each part of a parameter the tensor that it is, or one tensor for each expert. Parts of an expert's
matrix lie one after the other."""


def parts_of(model: Any, names: Iterable[str]) -> Mapping[str, Parts]:
    """The parts of those parameters of `model` that are one tensor, or stacked tensors of single experts.

    `names`: of all tensors of the checkpoint.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    rules = get_model_conversion_mapping(model)
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    known, prefix = model.state_dict(), model.base_model_prefix
    found = defaultdict[str, dict[str | None, list[str]]](dict)
    for name in sorted(names, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, known)
        if target not in known and name in known:
            target, pattern = rename_source_key(name, [], [], prefix, known)
        found[target].setdefault(pattern, []).append(name)
    by_pattern = {pattern: rule for rule in converters for pattern in rule.source_patterns}
    parts = dict[str, Parts]()
    for target, names_of in found.items():
        pattern = next(iter(names_of))
        if len(names_of) == 1 and pattern is None and len(names_of[None]) == 1:
            parts[target] = ((names_of[None][0],),)
        elif pattern is not None and _stacks(by_pattern[pattern]):
            order = by_pattern[pattern].source_patterns
            if set(order) == set(names_of):
                parts[target] = tuple(tuple(names_of[each]) for each in order)
    left = [name for target, each in found.items() if target not in known for name in each.get(None, ())]
    return _numbered(left, known) | {target: each for target, each in parts.items() if target in known}


_ONE = re.compile(r"(.+)\.\d+\.(gate_up|gate|up|down)_proj\.weight")


def _numbered(names: Iterable[str], known: Collection[str]) -> dict[str, Parts]:
    """Parts of stacked experts, whose matrices in `names` are in the order of their numbers."""
    found = defaultdict[str, dict[str, list[str]]](dict)
    for name in names:
        if match := _ONE.fullmatch(name):
            experts, part = match.groups()
            target = f"{experts}.{'down' if part == 'down' else 'gate_up'}_proj"
            found[target].setdefault(part, []).append(name)
    return {
        target: tuple(tuple(parts[part]) for part in sorted(parts))  # gate is before up
        for target, parts in found.items()
        if target in known and len({len(each) for each in parts.values()}) == 1
    }


def _stacks(rule: Any) -> bool:
    """Whether a rule of transformers stacks experts, each of which has its parts one after the other."""
    kinds = [(type(each).__name__, each.dim) for each in rule.operations if hasattr(each, "dim")]
    parts = len(rule.source_patterns)
    expected = [("MergeModulelist", 0)] + [("Concatenate", 1)] * (parts > 1)
    return kinds == expected and len(rule.operations) == len(kinds) and len(rule.target_patterns) == 1
