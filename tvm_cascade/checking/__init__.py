"""Standards for results: the references that compute a file (`reference`), known defects in them, and the machine
(`doctor`).
"""
