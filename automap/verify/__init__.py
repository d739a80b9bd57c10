"""Holding a plan against what the compiler made of it."""
