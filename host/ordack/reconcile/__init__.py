"""`ordack table reconcile`: compares captures with segments and a table.

compare.py joins the three sides. result.py describes the outcome.
"""
