"""Lowering functions of `LowerQuantized`: TFLite's integer arithmetic in TE, registered by the Relax operator replaced."""
