"""`python -m tvm_cascade` is `tvm-cascade`; importing it runs nothing."""

from tvm_cascade.cli import main

if __name__ == "__main__":
    main()
