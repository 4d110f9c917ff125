"""The layout of images: channels last, Conv1d as one row, for every format, for boards and for CUDA."""
