"""Performance schedules: the hand-written loops of fast row kernels.

Convolution, depthwise convolution and dense are in one file per family of cores: `cortex_m_mve` (Cortex-M55 and M85),
`cortex_m_dsp` (M4, M7 and M33), `cortex_m_scalar` (M0+, M3 and RISC-V), with their common structure in `conv_row`. The
remaining operators have separate files. `select` chooses an operator's kernel.
"""
