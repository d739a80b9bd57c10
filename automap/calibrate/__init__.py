"""Calibration: measure this machine's devices and links, write a hardware file and a profile."""
