"""MetaFlow (SysML 2019): equivalent graphs by relaxed substitutions, under a cost that the user chooses.

`metaflow` is the search (Algorithm 2's split of large graphs: `split`), `costs` what it minimizes, `pattern` defines what a
rule is. The rules: `rules_conv` (enlarge, merge and fold convolutions), `rules_groups` (depthwise and grouped ones),
`rules_algebra` (element-wise operators, products), `rules_layout` (data movement), `rules_quantized`; `rules` lists all.
"""
