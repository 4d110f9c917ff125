"""TFLite's integer arithmetic as TE: one function an operator, found by the Relax operator that it replaces."""
