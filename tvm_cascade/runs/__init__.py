"""Images run and measured (`run_image`): in the emulator, in this process, on a board behind a serial port."""
