"""Source patterns, matches and rules: MetaFlow's graph substitutions (SysML 2019, section 3, Figure 4) as records.

A pattern is a term: named operators over operands. A term matches at an operator if kinds and operands agree;
commutative operators are tried both ways. A rule with several roots matches operator tuples with a single reference as
`shared` operand.

External edges need no declaration. Graphs are hash-consed, so a matched operator with further readers stays; the target
maps old references to new ones (`Mapping`), and operators without readers disappear. A rule is correct if each old
reference equals its new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations, permutations, product

from tvm_cascade.operators.table import COMMUTATIVE
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref


@dataclass(frozen=True, slots=True)
class Term:
    """An operator with a kind in `kinds` whose first operands match `operands`; None matches any operand."""

    name: str
    kinds: frozenset[str]
    operands: tuple[Term | None, ...] = ()


def op(name: str, kinds: str | frozenset[str], *operands: Term | None) -> Term:
    """Return a term; `kinds` may be a single string with kinds separated by blanks."""
    return Term(name, frozenset(kinds.split()) if isinstance(kinds, str) else kinds, operands)


Operators = Mapping[str, Node]  # of a match, by the pattern's names
Target = Ref | Mapping[Ref, Ref] | None


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A substitution.

    `target(pool, **operators)` takes the matched operators by pattern name and builds new ones. It returns the first
    root's replacement, or a mapping from old to new references, or None if shapes and attributes do not allow it. The
    target depends only on the matched operators and their ancestors. With `sees_readers` it also depends on readers:
    its target is `target(dag, readers, **operators)`, with `readers` from `Dag.users`.
    """

    name: str
    before: str  # the source graph as an expression
    after: str  # the target graph
    roots: tuple[Term, ...]
    target: Callable[..., Target]
    shared: int = 0  # several roots: the index of the operand that they have in common
    ordered: bool = False  # several roots: (a, b) and (b, a) are different matches
    integer_exact: bool = False  # on integers both sides are equal bit for bit
    folds_weights: bool = False  # folds constants into weights or a bias; never into weights that are trained
    grows: bool = False  # there are more operators afterwards, though they may cost less
    eager: bool = False  # applied at once, as no other rule needs the operators that it removes
    whole_graph: bool = False  # global rule: it joins distant operators, so it is tried before the graph is split
    sees_readers: bool = False  # the target also depends on the readers of results
    # two roots: whether they can match together at all, told from their kinds, attributes and types alone
    alike: Callable[[Node, Node], bool] | None = None
    # whether `target` has a result (for roots that are `alike`), where that is told without building it: of many pairs
    # few are ever rewritten
    fits: Callable[..., bool] | None = None


exact = partial(Rule, integer_exact=True)


@dataclass(frozen=True, eq=False)
class Site:
    """A place where a rule applies: the operators matched and the replacements, which are built when they are asked for."""

    rule: Rule
    nodes: tuple[Node, ...]
    build: Callable[[], Mapping[Ref, Ref]]

    @cached_property
    def target(self) -> Mapping[Ref, Ref]:
        """Return the replacements, from old to new references."""
        return self.build()


def matches(term: Term, node: Node) -> Iterator[dict[str, Node]]:
    """Yield all matches of `term` at `node`."""
    if node.kind not in term.kinds or node.constant:
        return
    if not term.operands:
        yield {term.name: node}
        return
    if len(node.inputs) < len(term.operands):
        return
    orders = [node.inputs]
    if node.kind in COMMUTATIVE and len(term.operands) == 2:
        orders = [tuple(p) for p in permutations(node.inputs)]
    for order in orders:
        for operands in _operands(term.operands, order):
            yield {term.name: node, **operands}


def _operands(terms: Sequence[Term | None], refs: Sequence[Ref]) -> Iterator[dict[str, Node]]:
    if len(terms) == 0:
        yield {}
        return
    first = terms[0]
    heads: Iterator[dict[str, Node]] = iter([{}]) if first is None else matches(first, refs[0].node)
    for head in heads:
        for tail in _operands(terms[1:], refs[1:]):
            yield {**head, **tail}


def _site(rule: Rule, operators: Operators, target: Target) -> Site | None:
    """Return a match's site; None if the rule's target is None or empty."""
    if not target:
        return None
    replaced = _replacements(rule, operators, target)
    read = (r.node for r in replaced) if rule.sees_readers else ()
    return Site(rule, tuple(dict.fromkeys((*operators.values(), *read))), lambda: replaced)


def _replacements(rule: Rule, operators: Operators, target: Target) -> Mapping[Ref, Ref]:
    """Return a match's target as a mapping."""
    assert target
    return {operators[rule.roots[0].name].result: target} if isinstance(target, Ref) else target


@dataclass(slots=True)
class Matcher:
    """Finds the sites for `rules` in graphs from one pool; sites and matches independent of the graph are cached."""

    rules: tuple[Rule, ...]
    _single: dict[Node, tuple[Site, ...]] = field(default_factory=dict)
    _roots: dict[tuple[str, int, Node], tuple[Operators, ...]] = field(default_factory=dict)
    _pairs: dict[tuple[str, Node, Node], Site | None] = field(default_factory=dict)
    _alike: dict[tuple[str, int, int], bool] = field(default_factory=dict)  # by rule and signatures
    _of_graphs: tuple[Rule, ...] = field(init=False)  # rules of several roots, and those that see readers
    _of_kind: dict[str, tuple[Rule, ...]] = field(default_factory=dict)  # the rest, by the root's kind

    def __post_init__(self) -> None:
        self._of_graphs = tuple(r for r in self.rules if len(r.roots) > 1 or r.sees_readers)

    def sites(self, dag: Dag) -> list[Site]:
        """Return all sites in the graph: one-root rules operator by operator, then the rest rule by rule."""
        all_sites: list[Site] = []
        by_kind: dict[str, list[Node]] = {}
        single = self._single
        for node in dag.nodes:
            found = single.get(node)
            if found is None:
                found = self.sites_at(dag.pool, node)
            if found:
                all_sites += found
            by_kind.setdefault(node.kind, []).append(node)
        readers: dict[Ref, list[Node]] | None = None
        for rule in self._of_graphs:
            first, *others = rule.roots
            nodes = [n for kind, alike in by_kind.items() if kind in first.kinds for n in alike]
            if len(nodes) <= len(others):
                continue
            if others:
                all_sites += self._joint(rule, dag.pool, nodes)
            else:
                readers = dag.users() if readers is None else readers
                candidates = (
                    _site(rule, m, rule.target(dag, readers, **m)) for n in nodes for m in self._root(rule, 0, n)
                )
                all_sites += [site for site in candidates if site is not None]
        return all_sites

    def sites_at(self, pool: Pool, node: Node) -> tuple[Site, ...]:
        """Return one-root sites at `node`, for any readers."""
        known = self._single.get(node)
        if known is None:
            known = self._single[node] = tuple(self._at(pool, node))
        return known

    def _at(self, pool: Pool, node: Node) -> Iterator[Site]:
        """Yield one-root sites at `node`."""
        rules = self._of_kind.get(node.kind)
        if rules is None:
            alone = (r for r in self.rules if r not in self._of_graphs and node.kind in r.roots[0].kinds)
            rules = self._of_kind[node.kind] = tuple(alone)
        for rule in rules:
            seen: set[tuple[Ref, ...]] = set()
            for operators in matches(rule.roots[0], node):
                site = _site(rule, operators, rule.target(pool, **operators))
                if site is not None and (key := tuple(site.target.values())) not in seen:
                    seen.add(key)
                    yield site

    def _root(self, rule: Rule, root: int, node: Node) -> tuple[Operators, ...]:
        """Return the matches for a single rule root at `node`."""
        key = (rule.name, root, node)
        if key not in self._roots:
            self._roots[key] = tuple(matches(rule.roots[root], node))
        return self._roots[key]

    def _joint(self, rule: Rule, pool: Pool, nodes: Sequence[Node]) -> Iterator[Site]:
        """Yield a two-root rule's sites: operator pairs with a shared operand."""
        sharing: dict[Ref, list[Node]] = {}
        for node in nodes:
            sharing.setdefault(node.inputs[rule.shared], []).append(node)
        for alike in sharing.values():
            if len(alike) < 2 or not (together := self._together(rule, alike)):
                continue
            for a, b in permutations(alike, 2) if rule.ordered else combinations(alike, 2):
                if (a.signature, b.signature) not in together:
                    continue
                key = (rule.name, a, b)
                if key not in self._pairs:
                    self._pairs[key] = self._pair(rule, pool, a, b)
                site = self._pairs[key]
                if site is not None:
                    yield site

    def _together(self, rule: Rule, nodes: Sequence[Node]) -> set[tuple[int, int]]:
        """Return the signature pairs among `nodes` whose operators can match together."""
        kinds = {node.signature: node for node in nodes}
        together: set[tuple[int, int]] = set()
        for a, b in product(kinds.values(), repeat=2):
            key = (rule.name, a.signature, b.signature)
            if key not in self._alike:
                self._alike[key] = rule.alike is None or rule.alike(a, b)
            if self._alike[key]:
                together.add(key[1:])
        return together

    def _pair(self, rule: Rule, pool: Pool, a: Node, b: Node) -> Site | None:
        site = None
        for left in self._root(rule, 0, a):
            for right in self._root(rule, 1, b):
                operators = {**left, **right}
                if rule.fits is None:
                    site = _site(rule, operators, rule.target(pool, **operators)) or site
                elif rule.fits(**operators):
                    site = Site(rule, tuple(dict.fromkeys(operators.values())), partial(_built, rule, pool, operators))
        return site


def _built(rule: Rule, pool: Pool, operators: Operators) -> Mapping[Ref, Ref]:
    """Return the replacements for a fitting match."""
    return _replacements(rule, operators, rule.target(pool, **operators))


def reaches(start: Ref, goal: Node) -> bool:
    """Return True if `goal` is the operator of `start` or an ancestor (ancestors have smaller pool indices)."""
    seen: set[Node] = set()
    stack = [start.node]
    while stack:
        node = stack.pop()
        if node is goal:
            return True
        if node.index > goal.index and node not in seen:
            seen.add(node)
            stack.extend(r.node for r in node.inputs if not r.node.constant)
    return False
