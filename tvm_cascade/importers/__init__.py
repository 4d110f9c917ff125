"""One module a file format: bytes in, Relax module out. `tvm_cascade.frontend` chooses between them."""
