"""Messages from queues to tables exactly once, and the audit of captures, on Spark.

Needs `pip install ordack[spark]` and Java.
"""
