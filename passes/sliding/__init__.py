"""Incremental inference on Relax modules: `read` finds how operators slide, `rewrite` makes the network of one frame."""
