"""What a plan costs: compute, collectives and memory, in seconds and bytes."""
