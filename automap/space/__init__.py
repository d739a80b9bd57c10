"""What can be decided about a workload: decision classes, points, presets."""
