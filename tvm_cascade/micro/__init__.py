"""Firmware: a lowered plan written as C (`codegen`, `write_image`), linked (`toolchain`), run and measured (`run_image`)."""
