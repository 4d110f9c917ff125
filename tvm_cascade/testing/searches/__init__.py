"""The compiled searches once more in Python, readable and slow: `native/*.c` computes step for step what these do."""
