"""The operator table: shape inference, work, windows, numpy semantics and traits for each kind of operator.

`table.OPERATORS` has an entry (`record.Operator`) for every kind, shared by all kinds of graphs. Entries are defined in
files by family; to add an operator, add an entry there.
"""
