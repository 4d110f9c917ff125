"""Equivalent candidate networks with a possibly smaller arena: a file per kind, and the loop that keeps the best."""
