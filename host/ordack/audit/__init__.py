"""The audit of captures: every transactional stream replayed by the receiver's rule, on this machine or on Spark.

Needs `pip install 'ordack[spark]'`, and Java for Spark.
"""
