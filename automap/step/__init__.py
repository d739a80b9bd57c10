"""A step as its user wrote it: its calls, the objects of libraries it is given, the shardings in
its code.
"""
