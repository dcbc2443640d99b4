"""Thin readers: each fetches what checks need, within a budget, and says what it could not see."""
