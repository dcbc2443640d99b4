"""Which of several replicas acts, and what keeps the others from acting.

Begin with `leader.py`.
"""
