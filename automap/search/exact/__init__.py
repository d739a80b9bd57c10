"""The best plan of a space, with a proof: elimination, prices on memory, and an integer programme
for the rest.
"""
