"""Standards for results: the references that compute a file (`reference`), their known defects, and the machine
(`doctor`).
"""
