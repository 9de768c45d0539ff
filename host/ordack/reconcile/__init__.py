"""`ordack pipeline reconcile`: what captures show that was stored, against what is in segments and in a table.

rows.py has the three sides as data frames, compare.py joins them and result.py says what came of it.
"""
