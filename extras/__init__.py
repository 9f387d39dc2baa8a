"""
What goes further than the plain path: see README.md here.
"""
import sys

MOVED = {
    "extras.diversity": "diversity.py", "extras.puzzles": "-m extras.solve",
    "extras.course": "-m course.hand_out"}

for argument in sys.orig_argv:
    if argument in MOVED:
        raise SystemExit(f"python -m {argument} is now python {MOVED[argument]}")
