"""Relax passes of the project, one a file; each works alone in a `tvm.transform.Sequential`."""
