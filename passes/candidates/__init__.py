"""Equivalent networks that may need a smaller arena: one file a kind of candidate, one loop that plans and keeps the best."""
