"""Names of rule sets (`schedules.rules.select.RULE_SETS`) for each class of cores, the most demanding first."""

from __future__ import annotations

COMMON = ("pooling", "moves", "softmax", "matmul", "hybrid")  # of every core that has performance schedules
SCALAR = ("cortex_m_scalar", *COMMON)
DSP = ("cortex_m_dsp", "float_fpu", "float_pool", *SCALAR)
MVE = ("cortex_m_mve", "hybrid_mve", "int16_mve", "float_mve", *DSP)
