"""The audit of captures: replays every transactional stream by the receiver's rule, in this process or on Spark.

Needs `pip install '.[spark]'`, and Java for Spark.
"""
