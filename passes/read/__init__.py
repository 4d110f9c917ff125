"""The common reader of Relax functions, on which the graphs are built: straight-line code as numbered values and calls."""
