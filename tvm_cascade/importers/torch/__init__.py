"""Import `.pt2` files from torch.export as Relax modules (`load.from_torch`), without executing their contents
(`archive`).
"""
