"""All substitution rules, and the subsets that searches use."""

from __future__ import annotations

from tvm_cascade.errors import UsageError
from tvm_cascade.substitution.pattern import Rule
from tvm_cascade.substitution.rules_algebra import ALGEBRA_RULES
from tvm_cascade.substitution.rules_conv import CONV_RULES
from tvm_cascade.substitution.rules_groups import GROUP_RULES
from tvm_cascade.substitution.rules_layout import LAYOUT_RULES
from tvm_cascade.substitution.rules_products import PRODUCT_RULES
from tvm_cascade.substitution.rules_quantized import QUANTIZED_RULES

ALL_RULES: tuple[Rule, ...] = (
    *CONV_RULES,
    *GROUP_RULES,
    *ALGEBRA_RULES,
    *PRODUCT_RULES,
    *LAYOUT_RULES,
    *QUANTIZED_RULES,
)
_BY_NAME = {rule.name: rule for rule in ALL_RULES}

EAGER_RULES = tuple(rule for rule in ALL_RULES if rule.eager)


def rules(*names: str) -> tuple[Rule, ...]:
    """Return rules by name. Raises `UsageError` for an unknown name."""
    for name in names:
        if name not in _BY_NAME:
            raise UsageError(f"unknown substitution {name}: choose from {', '.join(_BY_NAME)}")
    return tuple(_BY_NAME[n] for n in names)


def integer_rules() -> tuple[Rule, ...]:
    """Return the rules with bit-equal results on integers."""
    return tuple(r for r in ALL_RULES if r.integer_exact)


# The rules for reproducing MetaFlow's Table 3: the four printed substitutions and those of its artifact, biases included.
PAPER_RULES = rules(
    "enlarge_kernel", "fuse_convs", "fuse_convs_enlarged", "fuse_conv_add", "fuse_activation", "merge_groups",
    "concat_of_split", "split_of_concat", "flatten_split", "exclusive_concat", "distribute", "reorder_sum", "factor",
    "merge_matmuls", "fuse_elementwise", "batch_unary",
)  # fmt: skip
