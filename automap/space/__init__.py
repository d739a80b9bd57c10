"""What can be decided about a program: points, presets, pins."""
