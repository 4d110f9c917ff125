"""Source patterns, matches and rules: MetaFlow's graph substitutions (SysML 2019, section 3, Figure 4) as records.

A pattern is a term: operators over operands, each operator with a name. A term matches at an operator when kinds and
operands agree; commutative operators are tried both ways. A rule with several roots matches tuples of operators whose
`shared` operand is the same reference.

External edges need no declaration in the pattern. Graphs are hash-consed, so an operator that a match covers and that
others still read simply stays; the target says which outputs it redefines (`Mapping` from old to new references), and
whatever nothing reads any more is gone. Equivalence of exactly those pairs is a rule's proof obligation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from tvm_cascade.operators.table import COMMUTATIVE
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref


@dataclass(frozen=True, slots=True)
class Term:
    """An operator of one of `kinds` whose first operands match `operands`; None matches any operand."""

    name: str
    kinds: frozenset[str]
    operands: tuple[Term | None, ...] = ()


def op(name: str, kinds: str | frozenset[str], *operands: Term | None) -> Term:
    """A term; `kinds` may be words separated by blanks."""
    return Term(name, frozenset(kinds.split()) if isinstance(kinds, str) else kinds, operands)


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Operators by the pattern's names."""

    named: Mapping[str, Node]

    def __getitem__(self, name: str) -> Node:
        return self.named[name]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(self.named.values()))


Target = Mapping[Ref, Ref]


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A substitution.

    `target` builds the new operators and returns which references they replace, or None where the constraints on shapes
    and attributes do not hold. Rules of one root depend on nothing but the root, those of several on their roots.
    """

    name: str
    before: str  # the source graph as an expression
    after: str  # the target graph
    roots: tuple[Term, ...]
    target: Callable[[Pool, Match], Target | None]
    shared: Callable[[Node], Ref] | None = None  # several roots: the operand they have in common
    ordered: bool = False  # several roots: (a, b) and (b, a) are different matches
    integer_exact: bool = False  # bit for bit on integers, not only up to reassociation
    folds_weights: bool = False  # needs constant weights, so it never fires in a training graph
    whole_graph: bool = (
        False  # a global rule: its operators may lie anywhere: tried on the whole graph before it is split
    )
    context: Callable[[Dag, Mapping[Ref, list[Node]], Node, Match], Target | None] | None = None
    # `context` replaces `target` in rules that must see who reads a result.


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A place where a rule applies: the operators matched and the replacements."""

    rule: Rule
    nodes: tuple[Node, ...]
    target: Target


def matches(term: Term, node: Node) -> Iterator[dict[str, Node]]:
    """All ways in which `term` matches at `node`."""
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
        for found in _operands(term.operands, order):
            yield {term.name: node, **found}


def _operands(terms: Sequence[Term | None], refs: Sequence[Ref]) -> Iterator[dict[str, Node]]:
    if len(terms) == 0:
        yield {}
        return
    first = terms[0]
    heads: Iterator[dict[str, Node]] = iter([{}]) if first is None else matches(first, refs[0].node)
    for head in heads:
        for tail in _operands(terms[1:], refs[1:]):
            yield {**head, **tail}


@dataclass(slots=True)
class Matcher:
    """Finds the sites of `rules` in graphs of one pool, remembering what does not depend on the graph."""

    rules: tuple[Rule, ...]
    _single: dict[Node, tuple[Site, ...]] = field(default_factory=dict)
    _roots: dict[tuple[str, int, Node], tuple[Match, ...]] = field(default_factory=dict)
    _pairs: dict[tuple, Site | None] = field(default_factory=dict)

    def sites(self, dag: Dag) -> list[Site]:
        """All sites in the graph: rules of one root operator by operator, then the others rule by rule."""
        found: list[Site] = []
        pool, single = dag.pool, self._single
        by_kind: dict[str, list[Node]] = {}
        for node in dag.nodes:
            known = single.get(node)
            if known is None:
                known = single[node] = tuple(self._at(pool, node))
            found += known
            by_kind.setdefault(node.kind, []).append(node)
        users: dict[Ref, list[Node]] | None = None
        for rule in self.rules:
            if len(rule.roots) > 1:
                self._join(rule, dag, _of(by_kind, rule), found)
            elif rule.context is not None and (nodes := _of(by_kind, rule)):
                users = dag.users() if users is None else users
                self._aware(rule, dag, users, nodes, found)
        return found

    def _at(self, pool: Pool, node: Node) -> Iterator[Site]:
        for rule in self.rules:
            root = rule.roots[0]
            if len(rule.roots) > 1 or rule.context is not None or node.kind not in root.kinds:
                continue
            seen: set[tuple[Ref, ...]] = set()
            for named in matches(root, node):
                match = Match(named)
                target = rule.target(pool, match)
                if target and (key := tuple(target.values())) not in seen:
                    seen.add(key)
                    yield Site(rule, match.nodes, target)

    def _root(self, rule: Rule, place: int, node: Node) -> tuple[Match, ...]:
        key = (rule.name, place, node)
        known = self._roots.get(key)
        if known is None:
            known = self._roots[key] = tuple(Match(n) for n in matches(rule.roots[place], node))
        return known

    def _join(self, rule: Rule, dag: Dag, nodes: Sequence[Node], found: list[Site]) -> None:
        assert rule.shared is not None
        buckets: dict[Ref, list[Node]] = {}
        for node in nodes:
            buckets.setdefault(rule.shared(node), []).append(node)
        for bucket in buckets.values():
            for i, a in enumerate(bucket):
                for b in bucket if rule.ordered else bucket[i + 1 :]:
                    if a is not b:
                        self._pair(rule, dag.pool, a, b, found)

    def _pair(self, rule: Rule, pool: Pool, a: Node, b: Node, found: list[Site]) -> None:
        key = (rule.name, a, b)
        if key not in self._pairs:
            self._pairs[key] = None
            for left in self._root(rule, 0, a):
                for right in self._root(rule, 1, b):
                    match = Match({**left.named, **right.named})
                    target = rule.target(pool, match)
                    if target:
                        self._pairs[key] = Site(rule, match.nodes, target)
        site = self._pairs[key]
        if site is not None:
            found.append(site)

    def _aware(
        self, rule: Rule, dag: Dag, users: Mapping[Ref, list[Node]], nodes: Sequence[Node], found: list[Site]
    ) -> None:
        assert rule.context is not None
        for node in nodes:
            for match in self._root(rule, 0, node):
                target = rule.context(dag, users, node, match)
                if target:
                    reads = [n for r in target for n in (r.node,) if n is not node]
                    found.append(Site(rule, tuple(dict.fromkeys((*match.nodes, *reads))), target))


def _of(by_kind: Mapping[str, list[Node]], rule: Rule) -> list[Node]:
    """Operators that the rule's first root can match, kind by kind."""
    return [n for kind, nodes in by_kind.items() if kind in rule.roots[0].kinds for n in nodes]


def reaches(start: Ref, goal: Node) -> bool:
    """Whether `goal` is `start`'s operator or one of its ancestors."""
    if start.node.index < goal.index and not start.node.inputs:
        return False
    seen: set[Node] = set()
    stack = [start.node]
    while stack:
        node = stack.pop()
        if node is goal:
            return True
        if node in seen:
            continue
        seen.add(node)
        stack.extend(r.node for r in node.inputs if not r.node.constant)
    return False
