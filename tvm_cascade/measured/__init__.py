"""Stages found by measuring: which kernels, libraries and stages are fastest here, or on servers of an RPC tracker."""
