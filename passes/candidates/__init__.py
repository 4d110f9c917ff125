"""Equivalent candidate networks with a possibly smaller arena: one file per kind, and the loop that keeps the best."""
