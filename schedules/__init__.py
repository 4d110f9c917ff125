"""s_tir schedule rules and hand-use primitives."""
