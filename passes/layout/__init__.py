"""The layout of images: channels last, Conv1d as a single row, for every format, for boards and for CUDA."""
