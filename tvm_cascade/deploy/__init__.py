"""Folders that run a staged network with TVM alone: library, examples in Python and C++, schedule and metadata."""

from __future__ import annotations
