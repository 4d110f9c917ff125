"""The one reader of Relax functions: straight-line code as numbered values and calls. Graphs are adapters on it."""
