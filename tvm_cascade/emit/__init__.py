"""Firmware: a lowered plan as C (`codegen`, `write_image`), linked (`toolchain`), packaged for other tools (`packages/`)."""
