"""Messages from queues to tables exactly once, on Spark.

Needs `pip install 'ordack[spark]'` and Java.
"""
