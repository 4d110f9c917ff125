"""The one table of operators: what each kind of operator is, whatever graph it stands in.

`table.OPERATORS` has an entry for every kind. An entry tells the operator's types from its operands' (shape inference),
its work in multiply-accumulates and arithmetic steps, its windows, its meaning in numpy, and the traits that searches and
cost models ask for. Entries lie in files by family; adding an operator is adding an entry to one of them.
"""
