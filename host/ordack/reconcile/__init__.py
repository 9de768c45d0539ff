"""`ordack pipeline reconcile`: what captures show that was stored, against what is in segments and in a table.

rows.py has the three sides as data frames, compare.py joins them, result.py says what came of it, page.py draws it.
"""
