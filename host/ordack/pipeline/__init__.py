"""Messages from queues to tables exactly once, on Spark.

Needs `pip install '.[spark]'` and Java.
"""
