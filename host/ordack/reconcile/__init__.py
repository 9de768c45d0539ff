"""`ordack pipeline reconcile`: what captures show that was stored, against what is in segments and in a table.

compare.py joins the three sides, and result.py says what came of it.
"""
