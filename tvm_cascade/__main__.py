"""`python -m tvm_cascade` is `tvm-cascade`; an import runs nothing."""

from tvm_cascade.cli import main

if __name__ == "__main__":
    main()
