"""Graph substitutions, MetaFlow (SysML 2019): search for the cheapest equivalent graph under a chosen cost.

`metaflow` is the search (Algorithm 1), `split` splits large graphs for it (Algorithm 2), `costs` are the cost
functions, `pattern` defines rules and matching. Rules: `rules_conv` (enlarge, merge and fold convolutions),
`rules_groups` (depthwise and grouped), `rules_algebra` (elementwise operators, products), `rules_layout` (data
movement) and `rules_quantized`; `rules` lists all.
"""
