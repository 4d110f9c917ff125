"""`python -m tvm_cascade.cli`."""

from tvm_cascade.cli import main

main()
