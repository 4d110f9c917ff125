"""`python -m tvm_cascade.cli`; importing it runs nothing."""

from tvm_cascade.cli import main

if __name__ == "__main__":
    main()
