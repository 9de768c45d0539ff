"""From queue to table exactly once, and the proof over a whole fleet, on Spark.

Needs `pip install ordack[spark]` and Java.
"""
